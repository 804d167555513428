//! The xDS relay between a real Envoy and a real pilot-discovery, with faults in between, and against a
//! small control plane of the tests' own where what is sent must be seen.

// clippy knows tests by their attribute, and not the functions that they share.
#![allow(clippy::unwrap_used)]

mod fixture;
mod name_table;
mod outages;
mod tcp_link;
mod tls;
