//! From a View to what Envoy reads: client picks what is wanted, plan says what goes into each resource, render writes
//! it down, patch changes it as users ask. Pure; it never sees the snapshot.

#![forbid(unsafe_code)]

pub mod client;
mod dns_cache;
mod extension;
mod http_filters;
mod listener_side;
pub mod names;
mod network_filters;
pub mod patch;
pub mod plan;
mod proto_struct;
mod regex_escape;
pub mod render;
pub mod security;
pub mod telemetry;
