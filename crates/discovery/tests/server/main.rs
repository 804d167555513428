//! The binary as its users meet it: flags, ports, pages, certificates, signals.

// clippy knows tests by their attribute, and not the functions that they share.
#![allow(clippy::unwrap_used)]

mod clients;
mod configs;
mod flags;
mod foreign;
mod pages;
mod started;
mod stopping;
mod stores;
mod tls;
