//! Registries against real servers, and against scripted ones for what a real server cannot be made to do.
//! Every adapter passes the same conformance suite, and so do stores whose ServiceEntries are services.

#![allow(clippy::unwrap_used, reason = "a test has no better answer than a panic")]

mod cloudfoundry;
mod conformance;
mod consul;
mod consul_scripted;
mod consul_tls;
mod dns;
mod eureka;
mod eureka_peers;
mod eureka_scripted;
#[path = "../watching/follower.rs"]
#[allow(dead_code, reason = "shared with the other tests of sources")]
mod follower;
#[path = "../watching/mcp_server.rs"]
#[allow(dead_code, reason = "shared with the other tests of sources")]
mod mcp_server;
mod memory;
#[path = "../watching/name_server.rs"]
#[allow(dead_code, reason = "shared with the other tests of sources")]
mod name_server;
#[path = "../watching/serving.rs"]
mod serving;
mod stores;
