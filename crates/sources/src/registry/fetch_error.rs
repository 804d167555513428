//! Why a registry server could not be read over HTTP.

use std::io;
use std::path::PathBuf;

use crate::http::{HttpError, HttpReply, shown};

#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("{url} answered {status}: {excerpt}")]
    Status { url: String, status: u16, excerpt: String },
    #[error("could not read the {what} in {}: {error}", file.display())]
    Credential { what: &'static str, file: PathBuf, error: io::Error },
}

impl FetchError {
    /// The error of a reply without success.
    pub(super) fn status(url: &str, reply: &HttpReply) -> FetchError {
        FetchError::Status { url: shown(url), status: reply.status.as_u16(), excerpt: reply.excerpt() }
    }
}
