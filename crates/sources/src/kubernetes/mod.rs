//! Kubernetes as a registry and a config store. `wire` decodes what the API server sends, `cluster` joins it
//! in memory into the model's words, whatever the order of arrival; neither does I/O. `live` feeds them from watches.
//! `definitions` installs those of our kinds.

pub mod access;
mod backoff;
mod checked_client;
pub(crate) mod client;
mod cluster_registry;
mod config;
mod credentials;
pub mod definitions;
mod fetch_credential;
mod guard;
mod interner;
pub mod join;
mod kubeconfig;
mod kubeconfig_dir;
mod locality;
mod outages;
mod pod;
pub mod rate_limit;
mod remote;
mod response_limits;
pub mod schema;
mod selector;
mod service;
mod slice;
pub mod source;
mod watch;
