//! Networking that several programs share, with one implementation each: `http` sends HTTP/1.1 requests,
//! `tls` sets up rustls.
//! The client of sources (`sources/http`) is another one: it keeps connections, bounds memory by a budget and checks
//! addresses.

#![forbid(unsafe_code)]

pub mod http;
pub mod tls;
