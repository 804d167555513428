//! From a View to what Envoy reads: client picks what is wanted, plan says what goes into each
//! resource, render writes it down,
//! patch changes it as users ask. Pure; it never sees the snapshot.

#![forbid(unsafe_code)]

pub mod class;
pub mod client;
pub mod dns_cache;
pub mod extension;
pub mod http_filters;
pub mod literal;
pub mod names;
pub mod network_filters;
pub mod patch;
pub mod plan;
pub mod render;
pub mod security;
pub mod structs;
pub mod telemetry;
