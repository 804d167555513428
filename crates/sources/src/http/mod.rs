//! The HTTP client of all sources, and the TLS settings that it shares with gRPC clients.

mod address_policy;
mod budget;
mod client;
mod error;
mod options;
mod reply;
mod tls;
mod url;

pub use address_policy::AddressPolicy;
pub use budget::BudgetShare;
pub use client::{HttpClient, RequestLimits};
pub use error::HttpError;
pub use options::{HELD_BYTES, HttpOptions};
pub use reply::HttpReply;
pub(crate) use tls::config as tls_config;
pub use tls::{ClientIdentity, TrustRoots};
pub use url::header;
pub(crate) use url::shown;
