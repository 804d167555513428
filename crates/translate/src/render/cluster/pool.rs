//! Connection pools: circuit breakers, timeouts, keep-alive and HTTP connection limits.

use api::envoy::config::cluster::v3::circuit_breakers::{Thresholds, thresholds};
use api::envoy::config::cluster::v3::{CircuitBreakers, UpstreamConnectionOptions};
use api::envoy::config::core::v3::{KeepaliveSettings, TcpKeepalive};
use api::envoy::r#type::v3::Percent;
use api::istio::networking::v1alpha3::ConnectionPoolSettings;
use api::istio::networking::v1alpha3::connection_pool_settings::{HttpSettings, TcpSettings, tcp_settings};
use api::istio::networking::v1alpha3::traffic_policy::RetryBudget;

use super::{ClusterDraft, http};
use crate::plan::cluster::ClusterContext;

/// Applies a connection pool; without one, connections are unlimited.
pub(super) fn apply(
    draft: &mut ClusterDraft,
    context: &ClusterContext,
    pool: Option<&ConnectionPoolSettings>,
    budget: Option<&RetryBudget>,
) {
    let tcp = pool.and_then(|p| p.tcp.as_ref());
    let http = pool.and_then(|p| p.http.as_ref());
    let timeout = tcp.and_then(|t| t.connect_timeout).or(context.mesh.connect_timeout);
    draft.cluster.connect_timeout = timeout;
    draft.cluster.circuit_breakers =
        Some(CircuitBreakers { thresholds: vec![limits(tcp, http, budget)], ..CircuitBreakers::default() });
    draft.cluster.upstream_connection_options = keep_alive(context, tcp);
    limit_connections(draft, tcp, http);
    if http.is_some_and(|h| h.use_client_protocol) {
        http::follow_client(draft);
    }
}

/// Limits default to unlimited, because Envoy's defaults are too small when many endpoints change at once.
fn limits(tcp: Option<&TcpSettings>, http: Option<&HttpSettings>, budget: Option<&RetryBudget>) -> Thresholds {
    let limit = |value: Option<i32>| Some(value.and_then(positive).unwrap_or(u32::MAX));
    Thresholds {
        max_connections: limit(tcp.map(|t| t.max_connections)),
        max_pending_requests: limit(http.map(|h| h.http1_max_pending_requests)),
        max_requests: limit(http.map(|h| h.http2_max_requests)),
        max_retries: limit(http.map(|h| h.max_retries)),
        retry_budget: budget.map(retry_budget),
        ..Thresholds::default()
    }
}

/// The value if positive; 0 means unset.
fn positive(value: i32) -> Option<u32> {
    u32::try_from(value).ok().filter(|v| *v > 0)
}

fn retry_budget(budget: &RetryBudget) -> thresholds::RetryBudget {
    const PERCENT: f64 = 20.0;
    const CONCURRENCY: u32 = 3;
    let concurrency = Some(budget.min_retry_concurrency).filter(|c| *c > 0).unwrap_or(CONCURRENCY);
    thresholds::RetryBudget {
        budget_percent: Some(Percent { value: budget.percent.unwrap_or(PERCENT) }),
        budget_interval: budget.budget_interval,
        min_retry_concurrency: Some(concurrency),
    }
}

/// TCP keep-alive: each field of the pool overrides the mesh's.
fn keep_alive(context: &ClusterContext, tcp: Option<&TcpSettings>) -> Option<UpstreamConnectionOptions> {
    let own = tcp.and_then(|t| t.tcp_keepalive.as_ref());
    let settings: Vec<&tcp_settings::TcpKeepalive> =
        [own, context.mesh.tcp_keepalive.as_ref()].into_iter().flatten().collect();
    if settings.is_empty() {
        return None;
    }
    let seconds = |d: api::Duration| u32::try_from(d.seconds).unwrap_or(0);
    let keepalive = TcpKeepalive {
        keepalive_probes: settings.iter().map(|k| k.probes).find(|probes| *probes > 0),
        keepalive_time: settings.iter().find_map(|k| k.time).map(seconds),
        keepalive_interval: settings.iter().find_map(|k| k.interval).map(seconds),
    };
    Some(UpstreamConnectionOptions { tcp_keepalive: Some(keepalive), ..UpstreamConnectionOptions::default() })
}

fn limit_connections(draft: &mut ClusterDraft, tcp: Option<&TcpSettings>, http: Option<&HttpSettings>) {
    let idle = http.and_then(|h| h.idle_timeout).or(tcp.and_then(|t| t.idle_timeout));
    let duration = tcp.and_then(|t| t.max_connection_duration);
    let requests = http.and_then(|h| positive(h.max_requests_per_connection));
    let streams = http.and_then(|h| positive(h.max_concurrent_streams));
    let keep_alive = http.and_then(|h| h.http2_keep_alive.as_ref());
    if idle.is_none() && duration.is_none() && requests.is_none() && streams.is_none() && keep_alive.is_none() {
        return;
    }
    let common = draft.http().common_http_protocol_options.get_or_insert_default();
    common.idle_timeout = idle.or(common.idle_timeout);
    common.max_requests_per_connection = requests.or(common.max_requests_per_connection);
    common.max_connection_duration = duration.or(common.max_connection_duration);
    let Some(http2) = http::http2_options(draft) else { return };
    http2.max_concurrent_streams = streams.or(http2.max_concurrent_streams);
    if let Some(settings) = keep_alive {
        http2.connection_keepalive = Some(KeepaliveSettings {
            interval: settings.interval,
            timeout: settings.timeout,
            ..KeepaliveSettings::default()
        });
    }
}
