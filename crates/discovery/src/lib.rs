//! pilot-discovery: connects sources, model, scope and translate and serves the result over xDS.
//! `startup` starts everything, `serve` handles changes and streams, `http` serves debug pages and metrics.

#![forbid(unsafe_code)]

pub mod args;
mod client_runtime;
pub mod config_api;
mod connections;
pub mod effective_settings;
pub mod environment;
pub mod file_descriptors;
mod flags;
mod grpc;
mod http;
mod injector_settings;
mod kubernetes;
mod listener;
mod managed_gateways;
pub mod metrics;
pub mod offline;
mod registration;
mod registries;
pub mod request;
pub mod serve;
pub mod startup;
mod stores;
pub mod tls;
mod trust;
mod webhook;

pub use webhook::validation_answer;
