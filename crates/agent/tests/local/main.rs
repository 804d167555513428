//! Local services of the agent: secrets for a real Envoy, status for kubelet and Prometheus, DNS for the workload.

// clippy knows tests by their attribute, and not the functions that they share.
#![allow(clippy::unwrap_used)]

mod dns;
mod secrets;
mod status;
mod stub_server;
