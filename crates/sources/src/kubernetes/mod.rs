//! Kubernetes as a registry and a config store. `wire` decodes what the API server sends, `cluster` joins it
//! in memory into the model's words, whatever the order of arrival; neither does I/O.

pub mod cluster;
mod config;
mod interner;
mod place;
mod pod;
mod selector;
mod service;
mod slice;
pub mod wire;
