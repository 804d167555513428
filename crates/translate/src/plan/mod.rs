//! A plan is the whole input of one output resource: small, ordered, hashable, without Envoy types.
//! A plan's fingerprint is the cache key of its rendering.

pub mod cluster;
pub mod endpoints;
pub mod listener;
pub mod names;
pub mod policy;
pub mod route;
pub mod secret;
