//! The pilot-discovery binary.

fn main() {}
