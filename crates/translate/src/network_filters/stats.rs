//! Istio's metrics of connections, by Telemetry.

use api::envoy::config::listener::v3::Filter;

use super::{Connection, Ending, NetworkFilter, named};
use crate::telemetry::metrics::{self, Stats};

pub(super) fn add(connection: &Connection<'_>, filters: &mut Vec<NetworkFilter>) {
    if connection.ending != Ending::Http {
        filters.extend(connection.stats.iter().cloned().map(NetworkFilter::Stats));
    }
}

pub(super) fn render(plan: &Stats) -> Filter {
    named(metrics::FILTER, metrics::render(plan))
}
