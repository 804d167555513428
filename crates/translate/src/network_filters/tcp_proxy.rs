//! The TCP proxy: forwards bytes to one cluster or to several by weight.

use api::envoy::config::listener::v3::Filter;
use api::envoy::extensions::filters::network::tcp_proxy::v3::{TcpProxy as EnvoyProxy, tcp_proxy};
use api::envoy::r#type::v3::{HashPolicy, hash_policy};
use api::{Duration, any};
use model::hashed::Hashed;
use model::names::Str;

use super::named;
use crate::telemetry::access_log::{self, AccessLog, LogSink, REPORT_INTERVAL};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TcpProxy {
    pub stat_prefix: Str,
    pub to: TcpDestination,
    pub idle_timeout: Option<Duration>,
    pub max_connection_duration: Option<Duration>,
    /// Connections from one source IP go to the same endpoint.
    pub hash_source_ip: bool,
    pub tunnel: Option<Tunnel>,
    pub access_log: Hashed<Vec<AccessLog>>,
}

/// Where the bytes go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TcpDestination {
    Cluster(Str),
    /// Clusters and weights; never empty.
    Weighted(Vec<(Str, u32)>),
}

/// Tunnels the bytes in an HTTP request to this `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tunnel {
    pub host: Str,
    /// POST instead of CONNECT.
    pub post: bool,
}

impl TcpProxy {
    /// A proxy to one cluster, with statistics under the cluster's name.
    pub fn to_cluster(cluster: &str, access_log: Hashed<Vec<AccessLog>>) -> TcpProxy {
        TcpProxy {
            stat_prefix: cluster.into(),
            to: TcpDestination::Cluster(cluster.into()),
            idle_timeout: None,
            max_connection_duration: None,
            hash_source_ip: false,
            tunnel: None,
            access_log,
        }
    }

    /// The only cluster, or the first of several.
    pub fn first_cluster(&self) -> &Str {
        match &self.to {
            TcpDestination::Cluster(cluster) => cluster,
            TcpDestination::Weighted(clusters) => clusters.first().map_or(&self.stat_prefix, |(cluster, _)| cluster),
        }
    }
}

pub(super) fn render(plan: &TcpProxy) -> Filter {
    let hash =
        || HashPolicy { policy_specifier: Some(hash_policy::PolicySpecifier::SourceIp(hash_policy::SourceIp {})) };
    let tunnel = |tunnel: &Tunnel| tcp_proxy::TunnelingConfig {
        hostname: tunnel.host.to_string(),
        use_post: tunnel.post,
        ..tcp_proxy::TunnelingConfig::default()
    };
    let config = EnvoyProxy {
        stat_prefix: plan.stat_prefix.to_string(),
        cluster_specifier: Some(destination(&plan.to)),
        idle_timeout: plan.idle_timeout,
        max_downstream_connection_duration: plan.max_connection_duration,
        hash_policy: plan.hash_source_ip.then(hash).into_iter().collect(),
        tunneling_config: plan.tunnel.as_ref().map(tunnel),
        access_log: access_log::render(&plan.access_log),
        access_log_options: log_options(&plan.access_log),
        ..EnvoyProxy::default()
    };
    named("envoy.filters.network.tcp_proxy", any(&config))
}

/// Open connections are logged for request metrics.
fn log_options(logs: &[AccessLog]) -> Option<tcp_proxy::TcpAccessLogOptions> {
    let is_reported = logs.iter().any(|log| matches!(log.sink, LogSink::RequestMetrics { .. }));
    is_reported.then(|| tcp_proxy::TcpAccessLogOptions {
        access_log_flush_interval: Some(REPORT_INTERVAL),
        flush_access_log_on_connected: true,
        ..tcp_proxy::TcpAccessLogOptions::default()
    })
}

fn destination(to: &TcpDestination) -> tcp_proxy::ClusterSpecifier {
    use tcp_proxy::weighted_cluster::ClusterWeight;
    match to {
        TcpDestination::Cluster(cluster) => tcp_proxy::ClusterSpecifier::Cluster(cluster.to_string()),
        TcpDestination::Weighted(clusters) => {
            let weighted = clusters.iter().map(|(name, weight)| ClusterWeight {
                name: name.to_string(),
                weight: *weight,
                ..ClusterWeight::default()
            });
            tcp_proxy::ClusterSpecifier::WeightedClusters(tcp_proxy::WeightedCluster { clusters: weighted.collect() })
        }
    }
}
