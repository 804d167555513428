//! Stores of config objects.

pub mod files;
pub mod memory;
