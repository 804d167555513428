//! Load balancing: algorithm, warm-up, and locality weights.

use api::envoy::config::cluster::v3::cluster::common_lb_config::{
    LocalityConfigSpecifier, LocalityWeightedLbConfig, ZoneAwareLbConfig,
};
use api::envoy::config::cluster::v3::cluster::{
    DiscoveryType, LbConfig, LbPolicy, LeastRequestLbConfig, MaglevLbConfig, RingHashLbConfig, RoundRobinLbConfig,
    SlowStartConfig,
};
use api::envoy::config::core::v3::RuntimeDouble;
use api::envoy::r#type::v3::Percent;
use api::istio::networking::v1alpha3::load_balancer_settings::consistent_hash_lb::HashAlgorithm;
use api::istio::networking::v1alpha3::load_balancer_settings::{self, ConsistentHashLb, SimpleLb};
use api::istio::networking::v1alpha3::{LoadBalancerSettings, WarmupConfiguration};
use model::port::Protocol;
use model::service::TrafficDistribution;

use super::{ClusterDraft, discovery};
use crate::plan::cluster::ClusterContext;
use crate::plan::cluster::outbound::OutboundPlan;
use crate::plan::endpoints::locality::LocalityLb;
use crate::plan::policy::{self, EffectivePolicy};

/// Applies load balancing. Outlier detection must be set before.
pub(super) fn apply(
    draft: &mut ClusterDraft,
    context: &ClusterContext,
    plan: &OutboundPlan,
    policy: &EffectivePolicy<'_>,
) {
    let sends_unhealthy = context.features.sends_unhealthy || plan.distribution != TrafficDistribution::Any;
    let common = draft.cluster.common_lb_config.get_or_insert_default();
    if sends_unhealthy {
        // Otherwise Envoy would send traffic to unready endpoints.
        common.healthy_panic_threshold.get_or_insert(Percent { value: 0.0 });
    }
    let setting = LocalityLb::of(policy.balancer, plan.distribution, &context.mesh);
    common.locality_config_specifier = locality_config(context, setting, policy.outlier.is_some());
    if draft.is_original_destination() {
        return draft.cluster.set_lb_policy(LbPolicy::ClusterProvided);
    }
    if context.features.redis_filter && plan.protocol == Protocol::Redis {
        // The Redis proxy shards keys over endpoints.
        return draft.cluster.set_lb_policy(LbPolicy::Maglev);
    }
    if policy.is_passthrough() {
        draft.cluster.cluster_discovery_type = discovery(DiscoveryType::OriginalDst);
        draft.cluster.load_assignment = None;
        return draft.cluster.set_lb_policy(LbPolicy::ClusterProvided);
    }
    algorithm(draft, policy.balancer);
}

/// Locality weights change algorithms like least request, so they are enabled only if configured.
fn locality_config(
    context: &ClusterContext,
    setting: Option<LocalityLb<'_>>,
    detects_outliers: bool,
) -> Option<LocalityConfigSpecifier> {
    let weighted = LocalityConfigSpecifier::LocalityWeightedLbConfig(LocalityWeightedLbConfig {});
    let asked_for = match setting {
        Some(LocalityLb::ZoneAware(zones)) => {
            let off = zones.enabled == Some(false);
            return Some(LocalityConfigSpecifier::ZoneAwareLbConfig(ZoneAwareLbConfig {
                routing_enabled: off.then_some(Percent { value: 0.0 }),
                min_cluster_size: zones.min_cluster_size.map(u64::from),
                ..ZoneAwareLbConfig::default()
            }));
        }
        Some(LocalityLb::Locality(locality)) => {
            let orders = !locality.failover.is_empty() || !locality.failover_priority.is_empty();
            !locality.distribute.is_empty() || (detects_outliers && orders)
        }
        Some(LocalityLb::Near(_)) => true,
        None => false,
    };
    (asked_for || context.features.locality_weighted_lb).then_some(weighted)
}

fn algorithm(draft: &mut ClusterDraft, balancer: Option<&LoadBalancerSettings>) {
    let slow_start = balancer.and_then(slow_start);
    let (algorithm, config) = match policy::simple(balancer) {
        SimpleLb::Random => (LbPolicy::Random, None),
        SimpleLb::RoundRobin => {
            let config = |slow_start_config| RoundRobinLbConfig { slow_start_config };
            (LbPolicy::RoundRobin, slow_start.map(|s| LbConfig::RoundRobinLbConfig(config(Some(s)))))
        }
        _ => {
            let config = |slow_start_config| LeastRequestLbConfig { slow_start_config, ..Default::default() };
            (LbPolicy::LeastRequest, slow_start.map(|s| LbConfig::LeastRequestLbConfig(config(Some(s)))))
        }
    };
    let hash = balancer.and_then(|b| match &b.lb_policy {
        Some(load_balancer_settings::LbPolicy::ConsistentHash(hash)) => Some(consistent_hash(hash)),
        _ => None,
    });
    let (algorithm, config) = match hash {
        Some((hashing, hash_config)) => (hashing, hash_config.or(config)),
        None => (algorithm, config),
    };
    draft.cluster.set_lb_policy(algorithm);
    draft.cluster.lb_config = config.or(draft.cluster.lb_config.take());
}

fn consistent_hash(hash: &ConsistentHashLb) -> (LbPolicy, Option<LbConfig>) {
    /// Envoy's default, which upstream sets explicitly if no algorithm is configured.
    const RING_SIZE: u64 = 1024;
    let ring = |size| {
        LbConfig::RingHashLbConfig(RingHashLbConfig { minimum_ring_size: Some(size), ..RingHashLbConfig::default() })
    };
    let set = |size: u64| Some(size).filter(|s| *s > 0);
    match &hash.hash_algorithm {
        Some(HashAlgorithm::Maglev(maglev)) => {
            let table = |size| LbConfig::MaglevLbConfig(MaglevLbConfig { table_size: Some(size) });
            (LbPolicy::Maglev, set(maglev.table_size).map(table))
        }
        Some(HashAlgorithm::RingHash(settings)) => (LbPolicy::RingHash, set(settings.minimum_ring_size).map(ring)),
        None => (LbPolicy::RingHash, Some(ring(set(hash.minimum_ring_size).unwrap_or(RING_SIZE)))),
    }
}

fn slow_start(balancer: &LoadBalancerSettings) -> Option<SlowStartConfig> {
    if let Some(warmup) = &balancer.warmup {
        return Some(warm_up(warmup));
    }
    let window = balancer.warmup_duration_secs?;
    Some(SlowStartConfig { slow_start_window: Some(window), ..SlowStartConfig::default() })
}

fn warm_up(warmup: &WarmupConfiguration) -> SlowStartConfig {
    const LINEAR: f64 = 1.0;
    const MINIMUM_PERCENT: f64 = 10.0;
    SlowStartConfig {
        slow_start_window: warmup.duration,
        aggression: Some(RuntimeDouble {
            default_value: warmup.aggression.unwrap_or(LINEAR),
            // Envoy requires a key; this is upstream's.
            runtime_key: "(".to_owned(),
        }),
        min_weight_percent: Some(Percent { value: warmup.minimum_percent.unwrap_or(MINIMUM_PERCENT) }),
    }
}
