//! Sources against real folders, real files and real kernel events.

#![allow(clippy::unwrap_used, reason = "a test has no better answer than a panic")]

mod dns;
mod files;
#[allow(dead_code, reason = "shared with the other tests of sources")]
mod follower;
mod gateways;
mod http;
mod jwks;
mod mcp;
#[allow(dead_code, reason = "shared with the other tests of sources")]
mod mcp_server;
mod memory;
mod mesh;
mod mock;
#[allow(dead_code, reason = "shared with the other tests of sources")]
mod name_server;
mod resync;
mod serving;
mod status;
mod supervisor;
