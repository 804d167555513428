//! The mesh as plain data: sources send `Change`s, which become immutable `Snapshot`s.
//! Pure: no I/O, no async, no clock, no globals.

#![forbid(unsafe_code)]

pub mod analysis;
pub mod change;
pub mod config;
pub mod conflict;
pub mod credential;
pub mod credential_refs;
pub mod duration;
pub mod endpoint;
pub mod fetch_requests;
pub mod grpc;
pub mod hashed;
pub mod host;
pub mod jwks;
pub mod labels;
pub mod names;
pub mod packed;
pub mod peer_policies;
pub mod port;
pub mod printable;
pub mod proxy;
pub mod registration;
pub mod service;
pub mod settings;
pub mod snapshot;
pub mod suggest;
pub mod workload;

pub use config::problem;
