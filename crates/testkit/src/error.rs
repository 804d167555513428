//! Why a client of the testkit has no result.

use std::fmt::Display;
use std::net::SocketAddr;

use http::StatusCode;

/// A request that failed, or a response that a test cannot use. Causes are texts, so that tests can compare results.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    #[error("could not build a request: {0}")]
    Request(String),
    #[error("no response from {address}: {cause}")]
    NoResponse { address: SocketAddr, cause: String },
    #[error("{request}: {status} {body}")]
    Status { request: String, status: StatusCode, body: String },
    #[error("{request} did not return JSON: {cause}")]
    NotJson { request: String, cause: String },
}

impl ReplyError {
    /// Converts the error of a connection to this address.
    pub(crate) fn no_response<E: Display>(address: SocketAddr) -> impl FnOnce(E) -> ReplyError {
        move |cause| ReplyError::NoResponse { address, cause: cause.to_string() }
    }
}

impl From<http::Error> for ReplyError {
    fn from(error: http::Error) -> ReplyError {
        ReplyError::Request(error.to_string())
    }
}

/// `wait::until` prints the last error of a condition as text.
impl From<ReplyError> for String {
    fn from(error: ReplyError) -> String {
        error.to_string()
    }
}
