//! The xDS relay between a real Envoy and a real pilot-discovery with faults, and with a fake control plane where
//! requests must be inspected.

// clippy knows tests by their attribute, and not the functions that they share.
#![allow(clippy::unwrap_used)]

mod failover;
mod fixture;
mod name_table;
mod outages;
mod tcp_link;
mod tls;
