//! Kubernetes as a registry and a config store. `wire` decodes what the API server sends, `cluster` joins it
//! in memory into the model's words, whatever the order of arrival; neither does I/O. `live` feeds them from watches.
//! `definitions` installs those of our kinds.

pub mod access;
mod answer;
mod asking;
mod backoff;
pub(crate) mod client;
pub mod cluster;
mod config;
mod credentials;
pub mod definitions;
mod folder;
mod guard;
mod interner;
mod kubeconfig;
mod lists;
pub mod live;
mod outages;
pub mod pace;
mod place;
mod pod;
mod registered;
mod remote;
mod selector;
mod service;
mod slice;
mod watching;
pub mod wire;
