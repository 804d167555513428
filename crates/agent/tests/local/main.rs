//! What the agent serves on its own machine: secrets to a real Envoy, status to kubelet and Prometheus,
//! DNS to the workload.

// clippy knows tests by their attribute, and not the functions that they share.
#![allow(clippy::unwrap_used)]

mod dns;
mod secrets;
mod status;
mod stub_server;
