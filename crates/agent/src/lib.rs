//! pilot-agent as a library: `run` starts everything, the other modules do one thing each.

#![forbid(unsafe_code)]

pub mod args;
pub mod bootstrap;
pub mod certificates;
pub mod dns;
pub mod environment;
pub mod file_secrets;
mod flags;
pub mod handover;
pub mod http_client;
pub mod identity;
pub mod iptables;
pub mod late_certificates;
pub mod metrics;
pub mod plan;
pub mod process;
pub mod proxyless;
mod regular_file;
pub mod relay;
pub mod requests;
pub mod run;
pub mod sds;
pub mod settings;
pub mod socket;
pub mod status;
