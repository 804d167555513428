//! Sources: config stores, service registries and mesh settings that are watched while the process runs.
//! Every source sends `model::change::Change`s; the model decides what they mean.

#![forbid(unsafe_code)]

mod backoff;
pub mod disk;
pub mod fetch;
mod file_watch;
pub mod gateways;
pub mod grpc;
pub mod health;
pub mod http;
pub mod kubernetes;
pub mod mesh;
pub mod registry;
pub mod source;
pub mod source_set;
pub mod status;
pub mod store;
mod watched_file;
