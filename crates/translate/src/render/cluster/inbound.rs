//! Renders inbound clusters.

use api::Duration;
use api::envoy::config::cluster::v3::Cluster;
use api::envoy::config::cluster::v3::cluster::{CommonLbConfig, DiscoveryType, LbPolicy};
use api::envoy::config::core::v3::{BindConfig, ExtraSourceAddress};
use api::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use api::envoy::config::endpoint::v3::{ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints};
use model::names::Str;

use super::outbound::original_destination;
use super::{ClusterDraft, delimited, discovery, http, metadata, pool};
use crate::plan::cluster::inbound::{InboundDestination, InboundPlan};
use crate::plan::cluster::{ClusterContext, effective};
use crate::render::endpoints::{address, socket_address};

/// The longest duration that fits into 64 bits of nanoseconds: original destination hosts never expire.
const NEVER: Duration = Duration { seconds: 9_223_372_035, nanos: 0 };

/// The cluster.
pub(super) fn cluster(name: &str, context: &ClusterContext, plan: &InboundPlan) -> Cluster {
    let mut draft = start(name, plan);
    http::speak(&mut draft, context, plan.protocol);
    // Only the rule's own traffic policy counts; subsets are for clients.
    let rule = plan.rule.as_ref().filter(|r| r.spec.traffic_policy.is_some());
    let policy = effective(rule, &context.mesh, plan.port);
    pool::apply(&mut draft, context, plan.pool.as_deref().or(policy.pool), policy.retry_budget);
    draft.cluster.upstream_bind_config = bind_config(&plan.bind);
    if context.features.telemetry_label && !plan.services.is_empty() {
        metadata::add_services(&mut draft.cluster, &plan.services);
    }
    if let Some(rule) = rule
        && metadata::is_present(&draft.cluster)
    {
        metadata::add_rule(&mut draft.cluster, rule);
    }
    draft.finish()
}

fn start(name: &str, plan: &InboundPlan) -> ClusterDraft {
    let mut draft = ClusterDraft::default();
    let cluster = &mut draft.cluster;
    cluster.name = name.to_owned();
    cluster.alt_stat_name = delimited(plan.stat_name.as_deref().unwrap_or(name));
    cluster.common_lb_config = Some(CommonLbConfig::default());
    match &plan.destination {
        InboundDestination::Original { port_override } => {
            cluster.cluster_discovery_type = discovery(DiscoveryType::OriginalDst);
            cluster.lb_config = original_destination(*port_override);
            cluster.set_lb_policy(LbPolicy::ClusterProvided);
            cluster.cleanup_interval = Some(NEVER);
        }
        InboundDestination::Fixed { address, port } => {
            cluster.cluster_discovery_type = discovery(DiscoveryType::Static);
            cluster.load_assignment = Some(one_endpoint(name, address, *port));
        }
    }
    draft
}

/// A load assignment of one endpoint.
pub(super) fn one_endpoint(cluster: &str, to: &str, port: u32) -> ClusterLoadAssignment {
    let endpoint = Endpoint { address: Some(address(to, port)), ..Endpoint::default() };
    let endpoint = LbEndpoint { host_identifier: Some(HostIdentifier::Endpoint(endpoint)), ..LbEndpoint::default() };
    ClusterLoadAssignment {
        cluster_name: cluster.to_owned(),
        endpoints: vec![LocalityLbEndpoints { lb_endpoints: vec![endpoint], ..LocalityLbEndpoints::default() }],
        ..ClusterLoadAssignment::default()
    }
}

/// Source addresses of connections to the workload; the first is the primary one.
pub(super) fn bind_config(addresses: &[Str]) -> Option<BindConfig> {
    let (first, more) = addresses.split_first()?;
    let extra = |a: &Str| ExtraSourceAddress { address: Some(socket_address(a, 0)), ..ExtraSourceAddress::default() };
    Some(BindConfig {
        source_address: Some(socket_address(first, 0)),
        extra_source_addresses: more.iter().map(extra).collect(),
        ..BindConfig::default()
    })
}
