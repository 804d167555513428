//! What several programs need to reach others, with one implementation each: `http` sends HTTP/1.1 requests, `tls` sets up
//! rustls, `watch` follows files such as certificates.
//! The client of sources (`sources/http`) is another one: it keeps connections, bounds memory by a budget and checks
//! addresses.

#![forbid(unsafe_code)]

pub mod http;
pub mod tls;
pub mod watch;
