//! Envoy's lifecycle under the agent: startup, crashes, certificate rotation, shutdown. With real Envoy and stubs.

#![allow(clippy::unwrap_used, reason = "a test has no better answer than a panic")]

mod control_plane_tls;
mod crashes;
mod fixture;
mod hot_restart;
mod ingress;
mod load;
mod no_certificates;
mod rotation;
mod shutdown;
mod startup;
