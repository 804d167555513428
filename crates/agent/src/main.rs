//! The `pilot-agent` binary: stands beside one Envoy and keeps it.
fn main() {}
