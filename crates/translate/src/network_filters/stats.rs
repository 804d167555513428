//! Istio's TCP metrics, from Telemetry.

use api::envoy::config::listener::v3::Filter;

use super::{ChainEnd, NetworkFilter, NetworkFilterInput, named};
use crate::telemetry::metrics::{self, StatsFilter};

pub(super) fn add(input: &NetworkFilterInput<'_>, filters: &mut Vec<NetworkFilter>) {
    if input.end != ChainEnd::Http {
        filters.extend(input.stats.iter().cloned().map(NetworkFilter::Stats));
    }
}

pub(super) fn render(plan: &StatsFilter) -> Filter {
    named(metrics::FILTER, metrics::render(plan))
}
