//! What the agent serves on its own machine: secrets to a real Envoy, status to kubelet and Prometheus,
//! DNS to the workload.

mod dns;
mod pages;
mod secrets;
mod status;
