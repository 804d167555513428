//! Istio's request metrics, from Telemetry.

use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;
use model::hashed::Hashed;

use super::{FilterPlan, HttpFilter, HttpFilterInput, named};
use crate::telemetry::metrics::{self, StatsFilter};

#[derive(Debug, Hash)]
struct HttpStats(Hashed<StatsFilter>);

pub(super) fn add(input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    filters.extend(input.stats.iter().cloned().map(|stats| HttpFilter::new(HttpStats(stats))));
}

impl FilterPlan for HttpStats {
    fn render(&self) -> EnvoyFilter {
        named(metrics::FILTER, metrics::render(&self.0))
    }
}
