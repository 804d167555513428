//! The binary as its users meet it: flags, ports, pages, certificates, signals.

mod clients;
mod flags;
mod pages;
mod started;
mod stopping;
mod tls;
