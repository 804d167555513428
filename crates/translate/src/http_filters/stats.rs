//! Istio's request metrics, from Telemetry.

use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;

use super::{HttpFilter, HttpFilterInput, named};
use crate::telemetry::metrics::{self, StatsFilter};

pub(super) fn add(input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    filters.extend(input.stats.iter().cloned().map(HttpFilter::Stats));
}

pub(super) fn render(plan: &StatsFilter) -> EnvoyFilter {
    named(metrics::FILTER, metrics::render(plan))
}
