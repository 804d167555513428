//! Stores of config objects.

mod collections;
pub mod files;
pub mod mcp;
pub mod memory;
mod streams;
pub mod xds;
