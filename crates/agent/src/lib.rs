//! pilot-agent as a library: `wire` starts everything, the other modules do one thing each.

#![forbid(unsafe_code)]

pub mod args;
pub mod ask;
pub mod bootstrap;
pub mod capture;
pub mod certificates;
pub mod dns;
pub mod environment;
pub mod file_secrets;
mod flags;
pub mod handover;
pub mod identity;
pub mod metrics;
pub mod plan;
pub mod process;
pub mod proxyless;
mod regular_file;
pub mod relay;
pub mod sds;
pub mod settings;
pub mod socket;
pub mod status;
pub mod wire;
