//! Events from the watches of Consul to the registry, and the paths that they query.

use model::names::Str;

use super::agents::{QueryResponse, escaped};
use super::error::ConsulError;
use super::options::ConsulOptions;
use super::schema::{CatalogServices, ConsulInstances};

/// Names and tags of all services.
pub(super) const SERVICES_PATH: &str = "/v1/catalog/services";

/// The result of a query. Queries are identified by a service name or, for lists, by their path.
#[derive(Debug)]
pub(super) enum CatalogEvent {
    Services(QueryResponse<CatalogServices>),
    Instances(Str, QueryResponse<ConsulInstances>),
    /// The query succeeded and nothing changed.
    Unchanged(Str),
    Failed(Str, ConsulError),
}

/// Path and parameters of the query for the instances of one service.
pub(super) fn instances_query(name: &str, options: &ConsulOptions) -> (String, String) {
    let path = format!("/v1/health/service/{}", escaped(name));
    let filter =
        if options.filter.is_empty() { String::new() } else { format!("&filter={}", escaped(&options.filter)) };
    (path, filter)
}
