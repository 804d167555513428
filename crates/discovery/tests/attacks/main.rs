//! Attacks on a running server by clients, config authors, registries and API servers. Each test named `hole_NN_…` keeps
//! one hole closed; `honest` measures what the attack costs everybody else.

// clippy knows tests by their attribute, and not the functions that they share.
#![allow(clippy::unwrap_used)]

mod amplification;
mod api_servers;
mod files;
mod forged;
mod honest;
mod input;
mod kubeconfigs;
mod load;
mod log;
mod memory;
mod pages;
mod registries;
mod streams;
mod texts;
