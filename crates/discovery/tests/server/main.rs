//! The pilot-discovery binary: flags, ports, pages, certificates, signals.

// Clippy recognizes tests by their attribute, but not the helper functions.
#![allow(clippy::unwrap_used)]

mod api;
mod api_load;
mod clients;
mod configs;
mod flags;
mod foreign;
mod mcp;
mod mcp_policies;
mod pages;
mod started;
mod stopping;
mod stores;
mod systemd;
mod tls;
