//! Service registries other than Kubernetes: what they share, a folder for each, and the `table` of all of them.

pub mod adapter;
pub mod adaptive_timeout;
pub mod cloudfoundry;
pub mod config;
pub mod config_file;
pub mod consul;
pub mod diff;
pub mod dns;
pub mod etcd;
pub mod eureka;
mod fetch_error;
pub mod flags;
mod instances;
pub mod mock;
pub mod normalize;
pub mod options_error;
pub mod poll_interval;
mod published_keys;
pub mod shared_options;
pub mod table;
pub mod zookeeper;
