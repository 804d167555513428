//! Everything that watches the outside: config stores, registries, mesh settings.
//! Each source speaks only `model::change`; what the changes mean is the model's business.

#![forbid(unsafe_code)]

pub mod disk;
pub mod fetch;
mod file_watch;
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
