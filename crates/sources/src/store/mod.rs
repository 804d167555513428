//! Config stores: files, memory, MCP and xDS servers.

mod collections;
pub mod files;
pub mod mcp;
pub mod memory;
mod streams;
pub mod xds;
