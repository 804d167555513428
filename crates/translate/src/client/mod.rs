//! Who asks: each kind of client turns its View into plans.

pub mod sidecar;
