//! Security policies: mTLS modes, JWT authentication, authorization.

pub mod authorization;
pub mod guards;
pub mod mtls;
pub mod policies;
pub mod request_authentication;
