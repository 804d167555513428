//! Merges DestinationRules that were converted from Gateway API policies into those of users: the user's fields win, the
//! policy fills the gaps.

use api::istio::networking::v1alpha3::TrafficPolicy;
use api::istio::networking::v1alpha3::traffic_policy::PortTrafficPolicy;

use crate::config::Meta;

/// Whether a rule was converted from a policy; users may not set this annotation.
pub(super) fn is_converted(meta: &Meta) -> bool {
    meta.annotations.contains_key("internal.istio.io/parents")
}

/// The user's traffic policy, with unset fields filled from the other.
pub(super) fn filled(user: Option<&TrafficPolicy>, other: Option<&TrafficPolicy>) -> Option<TrafficPolicy> {
    let (Some(user), Some(other)) = (user, other) else { return user.or(other).cloned() };
    let (user, other) = (user.clone(), other.clone());
    Some(TrafficPolicy {
        load_balancer: user.load_balancer.or(other.load_balancer),
        connection_pool: user.connection_pool.or(other.connection_pool),
        outlier_detection: user.outlier_detection.or(other.outlier_detection),
        tls: user.tls.or(other.tls),
        tunnel: user.tunnel.or(other.tunnel),
        proxy_protocol: user.proxy_protocol.or(other.proxy_protocol),
        retry_budget: user.retry_budget.or(other.retry_budget),
        port_level_settings: ports(user.port_level_settings, other.port_level_settings),
    })
}

fn ports(mut user: Vec<PortTrafficPolicy>, others: Vec<PortTrafficPolicy>) -> Vec<PortTrafficPolicy> {
    let number = |policy: &PortTrafficPolicy| policy.port.map(|port| port.number).unwrap_or_default();
    for other in others {
        let Some(known) = user.iter_mut().find(|p| number(p) == number(&other)) else {
            user.push(other);
            continue;
        };
        known.load_balancer = known.load_balancer.take().or(other.load_balancer);
        known.connection_pool = known.connection_pool.take().or(other.connection_pool);
        known.outlier_detection = known.outlier_detection.take().or(other.outlier_detection);
        known.tls = known.tls.take().or(other.tls);
    }
    user
}
