//! Why an HTTP request has no usable response.

use std::net::IpAddr;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    #[error("could not use the URL {url}: {reason}")]
    Url { url: String, reason: String },
    #[error("could not use the header {0}: its value has a character that is not allowed")]
    Header(&'static str),
    #[error("could not connect to {0}: the address is not allowed")]
    Forbidden(IpAddr),
    #[error("could not reach {url}: {reason}")]
    Unreachable { url: String, reason: String },
    #[error("could not read {url}: no response within {limit:?}")]
    Late { url: String, limit: Duration },
    #[error("could not read {url}: the response is longer than {limit} bytes")]
    TooLong { url: String, limit: usize },
    #[error("could not read {url}: all responses together are longer than {limit} bytes; {BUDGET_ADVICE}")]
    Full { url: String, limit: usize },
    #[error("could not decode the response of {url}: {reason}")]
    Decode { url: String, reason: String },
    #[error("could not decode the response of {url}: its {bytes} bytes need too much memory; {BUDGET_ADVICE}")]
    TooLargeToDecode { url: String, bytes: usize },
    #[error("could not set up TLS: {0}")]
    Tls(String),
}

/// What an operator can do about an exceeded memory budget.
const BUDGET_ADVICE: &str = "the server may be faulty; if it is not, raise maxBytes of the registry";
