//! Stores of config objects.

mod collections;
pub mod files;
pub mod mcp;
pub mod memory;
pub mod xds;
