//! Security policies: JWT authentication, authorization.

pub mod authorization;
pub mod guards;
pub mod policies;
pub mod request_authentication;
