//! The `pilot-agent` binary: stands beside one Envoy and keeps it.

#![forbid(unsafe_code)]

fn main() {}
