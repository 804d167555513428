//! pilot-discovery: joins sources, model, scope and translate and serves the result over xDS.
//! Start-up stands in `wire`, what happens on a change in `serve`, what is shown of it in `http`.

#![forbid(unsafe_code)]

pub mod args;
mod connections;
pub mod file_descriptors;
mod flags;
mod grpc;
mod http;
mod kubernetes;
mod listener;
pub mod metrics;
pub mod offline;
mod registries;
pub mod request;
mod runtimes;
pub mod serve;
pub mod startup;
mod stores;
pub mod tls;
