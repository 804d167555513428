//! The whole input of one output resource: small, ordered, hashable, no Envoy type in it.
//! A plan's fingerprint is the key under which its rendering is kept.

pub mod cluster;
pub mod endpoints;
pub mod listener;
pub mod locality;
pub mod names;
pub mod policy;
pub mod route;
pub mod secret;
