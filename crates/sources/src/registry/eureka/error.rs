//! Why Eureka could not be read.

use crate::http::HttpError;
use crate::registry::fetch_error::FetchError;

#[derive(Debug, thiserror::Error)]
pub(super) enum EurekaError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("{0} serves no list of applications")]
    NoApplications(String),
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    AllPeers(Vec<EurekaError>),
}

impl From<HttpError> for EurekaError {
    fn from(error: HttpError) -> EurekaError {
        EurekaError::Fetch(error.into())
    }
}
