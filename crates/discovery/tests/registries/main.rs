//! From a real registry to a request through a real Envoy: Consul, Eureka and Cloud Foundry, by flags and by a file.

#![allow(clippy::unwrap_used, reason = "a test has no better answer than a panic")]

mod cloudfoundry;
mod consul;
mod eureka;
mod fixture;
mod registry_down;
mod registry_parity;
mod removed;
