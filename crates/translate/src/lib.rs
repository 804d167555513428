//! From a View to what Envoy reads: client picks what is wanted, plan says what goes into each resource, render writes
//! it down, patch changes it as users ask. Pure; it never sees the snapshot.

#![forbid(unsafe_code)]

mod class;
pub mod client;
mod dns_cache;
mod extension;
mod http_filters;
mod literal;
pub mod names;
mod network_filters;
pub mod patch;
pub mod plan;
pub mod render;
pub mod security;
mod structs;
pub mod telemetry;
