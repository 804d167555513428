//! A client of etcd v3 for what this project needs: ranges, conditional writes of one key, and watches. It fails over
//! between the members of a cluster. The well-known client crate needs protoc to build and none of its other requests are
//! used here, so `schema` has the few messages.

#![forbid(unsafe_code)]

mod client;
mod connect;
mod error;
mod options;
mod schema;
mod watch;

pub use client::{EtcdClient, KeyRange, KeyRevision, RangePage, SwapOutcome};
pub use error::EtcdError;
pub use options::{EtcdOptions, EtcdTls, EtcdUser, OptionsError};
pub use schema::KeyValue;
pub use watch::{EtcdWatch, KeyWrite, WatchUpdate};
