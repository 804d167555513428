//! Registries against real servers, and against scripted ones for what a real server cannot be made to do.
//! Every adapter passes the same conformance suite.

mod cloudfoundry;
mod conformance;
mod consul;
mod consul_scripted;
mod eureka;
mod eureka_scripted;
#[path = "../watching/follower.rs"]
#[allow(dead_code, reason = "shared with the other tests of sources")]
mod follower;
mod memory;
