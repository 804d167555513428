//! Stores of config objects.

pub mod files;
