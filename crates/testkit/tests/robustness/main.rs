//! Tests of what proves robustness: the checker of promises, the forwarder that disturbs connections, the figures of a soak.

mod checker;
mod forwarder;
mod soak;
