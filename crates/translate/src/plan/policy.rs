//! The effective traffic policy of a cluster: combined from a DestinationRule, its subset, their port-level settings
//! and the mesh's defaults. Parts are borrowed.

use api::istio::mesh::v1alpha1::mesh_config::DefaultTrafficPolicy;
use api::istio::networking::v1alpha3::load_balancer_settings::{LbPolicy, SimpleLb};
use api::istio::networking::v1alpha3::traffic_policy::{PortTrafficPolicy, ProxyProtocol, RetryBudget};
use api::istio::networking::v1alpha3::{
    ClientTlsSettings, ConnectionPoolSettings, DestinationRule, LoadBalancerSettings, OutlierDetection, Subset,
    TrafficPolicy,
};

/// The effective policy of one cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EffectivePolicy<'a> {
    pub pool: Option<&'a ConnectionPoolSettings>,
    pub outlier: Option<&'a OutlierDetection>,
    pub balancer: Option<&'a LoadBalancerSettings>,
    pub tls: Option<&'a ClientTlsSettings>,
    pub proxy_protocol: Option<&'a ProxyProtocol>,
    pub retry_budget: Option<&'a RetryBudget>,
}

impl<'a> EffectivePolicy<'a> {
    /// The policy of a rule and one of its subsets for a service port.
    pub fn of(rule: &'a DestinationRule, subset: Option<&'a Subset>, port: u16) -> EffectivePolicy<'a> {
        let base = rule.traffic_policy.as_ref().map(|policy| on_port(policy, port).0).unwrap_or_default();
        base.with_subset(subset, port)
    }

    /// Overrides this policy with a subset's policy for a service port.
    #[must_use]
    pub fn with_subset(self, subset: Option<&'a Subset>, port: u16) -> EffectivePolicy<'a> {
        let Some(policy) = subset.and_then(|s| s.traffic_policy.as_ref()) else { return self };
        let (own, port_level) = on_port(policy, port);
        // Port-level settings inherit nothing.
        let inherit = !port_level;
        EffectivePolicy {
            pool: own.pool.or(self.pool.filter(|_| inherit)),
            outlier: own.outlier.or(self.outlier.filter(|_| inherit)),
            balancer: own.balancer.or(self.balancer.filter(|_| inherit)),
            tls: own.tls.or(self.tls.filter(|_| inherit)),
            proxy_protocol: own.proxy_protocol.or(self.proxy_protocol),
            retry_budget: own.retry_budget.or(self.retry_budget),
        }
    }

    /// Fills unset parts with the mesh's defaults.
    #[must_use]
    pub fn or_mesh(self, mesh: Option<&'a DefaultTrafficPolicy>) -> EffectivePolicy<'a> {
        EffectivePolicy {
            pool: self.pool.or(mesh.and_then(|m| m.connection_pool.as_ref())),
            outlier: self.outlier.or(mesh.and_then(|m| m.outlier_detection.as_ref())),
            ..self
        }
    }

    /// Whether connections go to their original destination, without load balancing.
    pub fn is_passthrough(&self) -> bool {
        simple(self.balancer) == SimpleLb::Passthrough
    }
}

/// The simple load balancing algorithm, or `Unspecified`.
pub fn simple(balancer: Option<&LoadBalancerSettings>) -> SimpleLb {
    match balancer.and_then(|b| b.lb_policy.as_ref()) {
        Some(LbPolicy::Simple(value)) => SimpleLb::try_from(*value).unwrap_or_default(),
        _ => SimpleLb::Unspecified,
    }
}

/// A rule's subset of this name.
pub fn subset<'a>(rule: &'a DestinationRule, name: &str) -> Option<&'a Subset> {
    rule.subsets.iter().find(|s| s.name == name)
}

/// A policy for a service port, and whether it comes from port-level settings.
pub fn on_port(policy: &TrafficPolicy, port: u16) -> (EffectivePolicy<'_>, bool) {
    match port_settings(policy, port) {
        Some(own) => (of_port(own), true),
        None => (of_policy(policy), false),
    }
}

/// The first port-level settings for this port.
fn port_settings(policy: &TrafficPolicy, port: u16) -> Option<&PortTrafficPolicy> {
    let wanted = |p: &&PortTrafficPolicy| p.port.as_ref().is_some_and(|s| s.number == u32::from(port));
    policy.port_level_settings.iter().find(wanted)
}

fn of_port(policy: &PortTrafficPolicy) -> EffectivePolicy<'_> {
    EffectivePolicy {
        pool: policy.connection_pool.as_ref(),
        outlier: policy.outlier_detection.as_ref(),
        balancer: policy.load_balancer.as_ref(),
        tls: policy.tls.as_ref(),
        ..EffectivePolicy::default()
    }
}

fn of_policy(policy: &TrafficPolicy) -> EffectivePolicy<'_> {
    EffectivePolicy {
        pool: policy.connection_pool.as_ref(),
        outlier: policy.outlier_detection.as_ref(),
        balancer: policy.load_balancer.as_ref(),
        tls: policy.tls.as_ref(),
        proxy_protocol: policy.proxy_protocol.as_ref(),
        retry_budget: policy.retry_budget.as_ref(),
    }
}

#[cfg(test)]
mod tests {
    use api::istio::mesh::v1alpha1::mesh_config::DefaultTrafficPolicy;
    use api::istio::networking::v1alpha3::load_balancer_settings::{LbPolicy, SimpleLb};
    use api::istio::networking::v1alpha3::traffic_policy::{PortTrafficPolicy, ProxyProtocol};
    use api::istio::networking::v1alpha3::{
        ConnectionPoolSettings, DestinationRule, LoadBalancerSettings, OutlierDetection, PortSelector, Subset,
        TrafficPolicy,
    };

    use super::{EffectivePolicy, simple};

    fn balancer(algorithm: SimpleLb) -> Option<LoadBalancerSettings> {
        let lb_policy = Some(LbPolicy::Simple(algorithm as i32));
        Some(LoadBalancerSettings { lb_policy, ..LoadBalancerSettings::default() })
    }

    fn outlier(percent: i32) -> Option<OutlierDetection> {
        Some(OutlierDetection { min_health_percent: percent, ..OutlierDetection::default() })
    }

    fn on_port(number: u32, load_balancer: Option<LoadBalancerSettings>) -> PortTrafficPolicy {
        PortTrafficPolicy { port: Some(PortSelector { number }), load_balancer, ..PortTrafficPolicy::default() }
    }

    fn rule(policy: TrafficPolicy, subset: Option<TrafficPolicy>) -> DestinationRule {
        let subset = Subset { name: "v1".to_owned(), traffic_policy: subset, ..Subset::default() };
        DestinationRule { traffic_policy: Some(policy), subsets: vec![subset], ..DestinationRule::default() }
    }

    #[test]
    fn port_settings_inherit_nothing() {
        let policy = TrafficPolicy {
            outlier_detection: outlier(10),
            load_balancer: balancer(SimpleLb::Random),
            proxy_protocol: Some(ProxyProtocol::default()),
            port_level_settings: vec![on_port(80, None)],
            ..TrafficPolicy::default()
        };
        let rule = rule(policy, None);
        assert_eq!(EffectivePolicy::of(&rule, None, 80), EffectivePolicy::default());
        let other = EffectivePolicy::of(&rule, None, 81);
        assert_eq!(simple(other.balancer), SimpleLb::Random);
        assert!(other.outlier.is_some() && other.proxy_protocol.is_some());
    }

    #[test]
    fn subset_overrides_the_rule_part_by_part() {
        let whole = TrafficPolicy {
            outlier_detection: outlier(10),
            load_balancer: balancer(SimpleLb::Random),
            ..TrafficPolicy::default()
        };
        let own = TrafficPolicy { load_balancer: balancer(SimpleLb::RoundRobin), ..TrafficPolicy::default() };
        let rule = rule(whole, Some(own));
        let policy = EffectivePolicy::of(&rule, rule.subsets.first(), 80);
        assert_eq!(simple(policy.balancer), SimpleLb::RoundRobin);
        assert_eq!(policy.outlier.map(|o| o.min_health_percent), Some(10));
    }

    #[test]
    fn port_settings_of_a_subset_inherit_nothing_from_the_rule() {
        let whole = TrafficPolicy {
            outlier_detection: outlier(10),
            proxy_protocol: Some(ProxyProtocol::default()),
            ..TrafficPolicy::default()
        };
        let own = TrafficPolicy {
            port_level_settings: vec![on_port(80, balancer(SimpleLb::Random))],
            ..TrafficPolicy::default()
        };
        let rule = rule(whole, Some(own));
        let policy = EffectivePolicy::of(&rule, rule.subsets.first(), 80);
        assert_eq!((simple(policy.balancer), policy.outlier), (SimpleLb::Random, None));
        assert!(policy.proxy_protocol.is_some(), "port settings cannot name it, so it stays");
    }

    #[test]
    fn mesh_defaults_apply_before_the_subset_overrides() {
        let mesh = DefaultTrafficPolicy {
            connection_pool: Some(ConnectionPoolSettings::default()),
            outlier_detection: outlier(50),
        };
        let own = TrafficPolicy { outlier_detection: outlier(7), ..TrafficPolicy::default() };
        let rule = rule(TrafficPolicy::default(), Some(own));
        let whole = EffectivePolicy::of(&rule, None, 80).or_mesh(Some(&mesh));
        assert_eq!(whole.outlier.map(|o| o.min_health_percent), Some(50));
        let subset = whole.with_subset(rule.subsets.first(), 80);
        assert_eq!(subset.outlier.map(|o| o.min_health_percent), Some(7));
        assert!(subset.pool.is_some());
    }
}
