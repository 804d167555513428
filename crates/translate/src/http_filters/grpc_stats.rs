//! Counts gRPC messages. Istio's stats filter reads the counts from filter state.

use api::any;
use api::envoy::extensions::filters::http::grpc_stats::v3::{FilterConfig, filter_config};
use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;

use super::{FilterPlan, HttpFilter, HttpFilterInput, named};

#[derive(Debug, Hash)]
struct GrpcStatsFilter;

pub(super) fn add(_input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    filters.push(HttpFilter::new(GrpcStatsFilter));
}

impl FilterPlan for GrpcStatsFilter {
    fn render(&self) -> EnvoyFilter {
        let config = FilterConfig {
            emit_filter_state: true,
            per_method_stat_specifier: Some(filter_config::PerMethodStatSpecifier::StatsForAllMethods(false)),
            ..FilterConfig::default()
        };
        named("envoy.filters.http.grpc_stats", any(&config))
    }
}
