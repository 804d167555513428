//! Why Consul could not be read.

use crate::http::HttpError;
use crate::registry::fetch_error::FetchError;

#[derive(Debug, thiserror::Error)]
pub(super) enum ConsulError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("{0} has no leader: its data may be stale")]
    NoLeader(String),
    #[error("the nodes have more than {0} services in total")]
    TooManyServices(usize),
    #[error("the ACL token no longer sees all services")]
    HiddenServices,
    #[error("the ACL token no longer sees all instances of {0}")]
    HiddenInstances(String),
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    AllAgents(Vec<ConsulError>),
}

impl From<HttpError> for ConsulError {
    fn from(error: HttpError) -> ConsulError {
        ConsulError::Fetch(error.into())
    }
}
