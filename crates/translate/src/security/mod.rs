//! Identity and permission: mutual TLS modes, tokens, who may do what.

pub mod authorization;
