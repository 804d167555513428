//! From a View to Envoy's config: `client` lists the resources of a proxy, `plan` computes the input of each,
//! `render` turns a plan into Envoy's message, `patch` applies EnvoyFilters. Pure; it never sees the snapshot.

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
pub mod proxyless;
mod recipe;
mod regex_escape;
pub mod render;
pub mod security;
pub mod telemetry;
pub mod whole;

pub use recipe::{Recipe, endpoints, recipe, recipes, unpatched};
