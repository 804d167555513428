//! Istio's metrics of requests, by Telemetry.

use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;

use super::{Connection, HttpFilter, named};
use crate::telemetry::metrics::{self, Stats};

pub(super) fn add(connection: &Connection<'_>, filters: &mut Vec<HttpFilter>) {
    filters.extend(connection.stats.iter().cloned().map(HttpFilter::Stats));
}

pub(super) fn render(plan: &Stats) -> EnvoyFilter {
    named(metrics::FILTER, metrics::render(plan))
}
