//! Renders outbound clusters. Order matters: protocol, policy, load balancing, TLS.

use api::Duration;
use api::envoy::config::cluster::v3::Cluster;
use api::envoy::config::cluster::v3::cluster::{
    CommonLbConfig, DiscoveryType, EdsClusterConfig, LbConfig, LbPolicy, OriginalDstLbConfig,
};
use api::envoy::config::core::v3::{HealthStatus, HealthStatusSet};
use api::envoy::r#type::v3::Percent;
use model::service::TrafficDistribution;

use super::{ClusterDraft, delimited, discovery, dns, http, lb, metadata, metadata_exchange, outlier, pool, tls};
use crate::dns_cache::{self, DnsCache};
use crate::plan::cluster::outbound::{EndpointDiscovery, OutboundPlan};
use crate::plan::cluster::{ClusterContext, effective};
use crate::plan::policy::EffectivePolicy;
use crate::render::{endpoints, secrets};

/// The cluster.
pub(super) fn cluster(name: &str, context: &ClusterContext, plan: &OutboundPlan) -> Cluster {
    let policy = effective(plan.rule.as_ref(), &context.mesh, plan.id.port);
    let forwarded = matches!(plan.discovery, EndpointDiscovery::DynamicForwardProxy(_));
    let mut draft = start(name, context, plan);
    http::speak(&mut draft, context, plan.protocol);
    if http::is_upgraded(context, plan.protocol, policy.pool) {
        http::speak_http2(&mut draft);
    }
    pool::apply(&mut draft, context, policy.pool, policy.retry_budget);
    detect_outliers(&mut draft, context, plan, &policy);
    if !forwarded {
        lb::apply(&mut draft, context, plan, &policy);
    }
    tls::apply(&mut draft, context, plan, &policy);
    if draft.cluster.cluster_discovery_type == discovery(DiscoveryType::Eds) {
        draft.cluster.eds_cluster_config = Some(EdsClusterConfig {
            service_name: name.to_owned(),
            eds_config: Some(secrets::from_us(Some(Duration::default()))),
        });
    }
    if context.features.metadata_exchange {
        draft.cluster.filters.push(metadata_exchange::filter());
    }
    describe(&mut draft.cluster, context, plan, &policy, forwarded);
    draft.finish()
}

/// The cluster with its endpoint discovery.
fn start(name: &str, context: &ClusterContext, plan: &OutboundPlan) -> ClusterDraft {
    let mut draft = ClusterDraft::default();
    let cluster = &mut draft.cluster;
    cluster.name = name.to_owned();
    cluster.alt_stat_name = delimited(plan.stat_name.as_deref().unwrap_or(name));
    cluster.common_lb_config = Some(CommonLbConfig::default());
    match &plan.discovery {
        EndpointDiscovery::Eds => cluster.cluster_discovery_type = discovery(DiscoveryType::Eds),
        EndpointDiscovery::Dns { logical, family, jitter, udp_max_queries, endpoints: groups } => {
            let kind = if *logical { DiscoveryType::LogicalDns } else { DiscoveryType::StrictDns };
            cluster.cluster_discovery_type = discovery(kind);
            dns::resolve(cluster, context, *family, *jitter, *udp_max_queries);
            cluster.load_assignment = Some(endpoints::assignment(name, groups));
        }
        EndpointDiscovery::OriginalDestination { port_override } => {
            cluster.cluster_discovery_type = discovery(DiscoveryType::OriginalDst);
            cluster.set_lb_policy(LbPolicy::ClusterProvided);
            cluster.lb_config = original_destination(*port_override);
        }
        EndpointDiscovery::DynamicForwardProxy(family) => {
            cluster.common_lb_config = None;
            dns::forward(cluster, dns_cache::render(&DnsCache::of_host(&plan.service.host, *family)), false);
        }
    }
    draft
}

/// Overrides the port of the original destination.
pub(super) fn original_destination(port_override: Option<u16>) -> Option<LbConfig> {
    let config = |port: u16| OriginalDstLbConfig { upstream_port_override: Some(port.into()), ..Default::default() };
    port_override.map(|port| LbConfig::OriginalDstLbConfig(config(port)))
}

fn detect_outliers(
    draft: &mut ClusterDraft,
    context: &ClusterContext,
    plan: &OutboundPlan,
    policy: &EffectivePolicy<'_>,
) {
    let always_sends_unhealthy =
        context.features.always_sends_unhealthy || plan.distribution != TrafficDistribution::Any;
    if let Some(settings) = policy.outlier {
        draft.cluster.outlier_detection = Some(outlier::detection(settings));
        if let Some(common) = &mut draft.cluster.common_lb_config {
            let threshold = outlier::panic_threshold(settings, always_sends_unhealthy);
            common.healthy_panic_threshold = threshold.map(|value| Percent { value });
        }
    }
    if plan.keeps_sessions
        && let Some(common) = &mut draft.cluster.common_lb_config
    {
        // Sessions stay on a draining endpoint; new requests do not go there.
        let kept = [HealthStatus::Healthy, HealthStatus::Draining, HealthStatus::Unknown, HealthStatus::Degraded];
        common.override_host_status = Some(HealthStatusSet { statuses: kept.map(|s| s as i32).to_vec() });
    }
}

fn describe(
    cluster: &mut Cluster,
    context: &ClusterContext,
    plan: &OutboundPlan,
    policy: &EffectivePolicy<'_>,
    forwarded: bool,
) {
    if context.features.telemetry_label && !forwarded {
        metadata::add_services(cluster, [&plan.service]);
    }
    let subset = plan.rule.as_ref().and_then(|r| r.subset());
    if plan.external && subset.is_none() {
        metadata::add_external(cluster);
    }
    if let Some(rule) = &plan.rule {
        metadata::add_rule(cluster, rule);
        metadata::add_alpn_override(cluster, policy.tls.map(|t| t.mode()));
    }
}
