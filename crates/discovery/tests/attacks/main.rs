//! Attacks on a running server by clients, config authors, registries and API servers. Each test named `hole_NN_…` keeps
//! one hole closed; `honest` measures the effect of an attack on other clients.

// Clippy recognizes tests by their attribute, but not the helper functions.
#![allow(clippy::unwrap_used)]

mod amplification;
mod api_servers;
mod files;
mod floods;
mod forged;
mod honest;
mod input;
mod kubeconfigs;
mod load;
mod log;
mod memory;
mod pages;
mod published_floods;
mod registries;
mod streams;
mod texts;
