//! DNS clusters, and dynamic forward proxy clusters.

use api::envoy::config::cluster::v3::Cluster;
use api::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, CustomClusterType, LbPolicy};
use api::envoy::config::core::v3::TypedExtensionConfig;
use api::envoy::extensions::clusters::dynamic_forward_proxy::v3::ClusterConfig;
use api::envoy::extensions::clusters::dynamic_forward_proxy::v3::cluster_config::ClusterImplementationSpecifier;
use api::envoy::extensions::common::dynamic_forward_proxy::v3::DnsCacheConfig;
use api::envoy::extensions::network::dns_resolver::cares::v3::CaresDnsResolverConfig;
use api::{Duration, any};
use model::settings::Milliseconds;

use crate::dns_cache::{CARES, DnsFamily, lookup_family};
use crate::plan::cluster::ClusterContext;

const FORWARD_PROXY: &str = "envoy.clusters.dynamic_forward_proxy";

/// Configures DNS resolution of a cluster's endpoints.
pub(super) fn resolve(
    cluster: &mut Cluster,
    context: &ClusterContext,
    family: DnsFamily,
    jitter: Milliseconds,
    udp_max_queries: u32,
) {
    let resolver = CaresDnsResolverConfig { udp_max_queries: Some(udp_max_queries), ..Default::default() };
    cluster.typed_dns_resolver_config =
        Some(TypedExtensionConfig { name: CARES.to_owned(), typed_config: Some(any(&resolver)) });
    cluster.set_dns_lookup_family(lookup_family(family));
    cluster.dns_jitter = Some(duration(jitter));
    cluster.dns_refresh_rate = context.mesh.dns_refresh_rate;
    cluster.respect_dns_ttl = true;
}

/// Makes a cluster resolve the host of each request. `insecure` allows TLS without server verification.
pub(super) fn forward(cluster: &mut Cluster, cache: DnsCacheConfig, insecure: bool) {
    let config = ClusterConfig {
        cluster_implementation_specifier: Some(ClusterImplementationSpecifier::DnsCacheConfig(cache)),
        allow_insecure_cluster_options: insecure,
        ..ClusterConfig::default()
    };
    cluster.set_lb_policy(LbPolicy::ClusterProvided);
    cluster.cluster_discovery_type = Some(ClusterDiscoveryType::ClusterType(CustomClusterType {
        name: FORWARD_PROXY.to_owned(),
        typed_config: Some(any(&config)),
    }));
}

fn duration(time: Milliseconds) -> Duration {
    let seconds = i64::try_from(time.0 / 1000).unwrap_or(i64::MAX);
    Duration { seconds, nanos: (time.0 % 1000) as i32 * 1_000_000 }
}
