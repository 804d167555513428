//! Kubernetes as a registry and a config store. `schema` decodes objects of the API server, and `join` turns them into
//! the model's services, endpoints, workloads and config objects, in any order of arrival; neither does I/O. `source`
//! feeds them from watches (`session`, `watch`). `definitions` installs the CustomResourceDefinitions of our kinds.

pub mod access;
mod checked_client;
pub(crate) mod client;
mod cluster_registry;
pub mod collection;
mod config;
mod credentials;
pub mod definitions;
mod fetch_credential;
mod guard;
mod interner;
pub mod join;
pub mod kubeconfig;
mod kubeconfig_dir;
mod locality;
mod outages;
mod pod;
pub mod rate_limit;
mod remote;
pub mod remote_access;
mod response_limits;
pub mod schema;
pub mod selector;
mod service;
pub mod session;
pub mod signing_requests;
mod slice;
pub mod source;
pub mod trust_objects;
mod watch;
pub mod webhook_objects;
pub mod workload_entries;
