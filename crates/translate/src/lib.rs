//! From a View to what Envoy reads: client picks what is wanted, plan says what goes into each
//! resource, render writes it down. Pure; it never sees the snapshot.

#![forbid(unsafe_code)]

pub mod client;
pub mod names;
pub mod plan;
pub mod render;
pub mod security;
