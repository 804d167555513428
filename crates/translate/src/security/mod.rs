//! Identity and permission: mutual TLS modes, tokens, who may do what.

pub mod authorization;
pub mod guards;
pub mod mtls;
pub mod policies;
pub mod request_authentication;
