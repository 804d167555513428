//! The configuration API: the Kubernetes REST conventions for the kinds of the mesh, on our own storage. kubectl, Helm and
//! client-go talk to it unchanged. `store` keeps objects, `resource` is the table of kinds, `api` answers requests and
//! `http` serves them.

#![forbid(unsafe_code)]

mod admission;
pub mod api;
mod apply;
mod discovery;
mod error;
mod field_cause;
pub mod http;
mod object;
mod openapi;
mod output;
mod patch;
mod protobuf;
mod query;
pub mod resource;
mod schema;
mod selector;
pub mod store;
mod strategic;
mod table;
pub mod users;
mod watch;

pub use error::ApiError;
pub use object::document;
