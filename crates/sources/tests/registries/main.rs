//! Registries with real servers, and with scripted ones for behaviour that a real server does not show on demand.
//! Every adapter passes the same conformance suite, and so do config stores whose ServiceEntries are services.

#![allow(clippy::unwrap_used, reason = "a test has no better answer than a panic")]

mod cloudfoundry;
mod conformance;
mod consul;
mod consul_scripted;
mod consul_tls;
mod dns;
mod etcd;
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
mod zookeeper;
