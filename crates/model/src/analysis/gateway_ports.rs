//! AuthorizationPolicies of gateways about ports that the gateways do not listen on (ISTIO-SECURITY-2021-002). Envoy compares
//! the port that its listener is bound to: the target port of the gateway's service, not the port that callers use.

use std::collections::BTreeSet;

use api::istio::networking::v1alpha3::Gateway;
use api::istio::security::v1beta1::AuthorizationPolicy;

use super::findings::Findings;
use super::spellings::policies;
use super::{Finding, full_name, listed};
use crate::config::problem::ProblemCode;
use crate::config::{Kind, Object, Spec};
use crate::labels::{Labels, selects};
use crate::names::ServiceKey;
use crate::snapshot::Snapshot;

/// The label of services whose port numbers gateways listen on themselves.
const NO_TRANSLATION: &str = "experimental.istio.io/disable-gateway-port-translation";
/// The condition key of the port.
const PORT_KEY: &str = "destination.port";

/// Ports of a gateway's policies must be ports of its listeners.
pub(super) fn listeners(snapshot: &Snapshot, found: &mut Findings) {
    for (object, policy) in policies(snapshot) {
        let Some(selector) = policy.selector.as_ref().filter(|selector| !selector.match_labels.is_empty()) else {
            continue;
        };
        let (selector, named) = (Labels::from(&selector.match_labels), named_ports(policy));
        if named.is_empty() {
            continue;
        }
        if !found.may_compare(snapshot.objects.of(Kind::Gateway).count()) {
            return;
        }
        let gateways: Vec<_> = of(snapshot, &selector).collect();
        let bound: BTreeSet<u32> = gateways.iter().flat_map(|(_, gateway)| bound_ports(snapshot, gateway)).collect();
        let Some(port) = named.into_iter().find(|port| !bound.contains(port)) else { continue };
        let Some((gateway, _)) = gateways.first() else { continue };
        let message = format!(
            "AuthorizationPolicy {} is about port {port}, on which no gateway that it selects listens: {} listens on {}. \
             The port of a rule is that of the listener, which is the target port of the gateway's service.",
            full_name(&object.meta),
            full_name(&gateway.meta),
            listed(&bound),
        );
        found.push(Finding::warning(ProblemCode::PolicyPort, object, message).at("spec.rules"));
    }
}

/// The Gateways whose workloads have all these labels.
pub(super) fn of<'a>(
    snapshot: &'a Snapshot,
    selector: &'a Labels,
) -> impl Iterator<Item = (&'a Object, &'a Gateway)> + use<'a> {
    snapshot.objects.of(Kind::Gateway).filter_map(move |object| match &object.spec {
        Spec::Gateway(spec) => {
            let is_selected = !selector.is_empty() && selector.is_subset_of(&Labels::from(&spec.selector));
            is_selected.then_some((object, &**spec))
        }
        _ => None,
    })
}

/// The ports that rules of the policy name.
fn named_ports(policy: &AuthorizationPolicy) -> BTreeSet<u32> {
    let operations = policy.rules.iter().flat_map(|rule| &rule.to).filter_map(|to| to.operation.as_ref());
    let ports = operations.flat_map(|operation| operation.ports.iter().chain(&operation.not_ports));
    let conditions = policy.rules.iter().flat_map(|rule| &rule.when).filter(|condition| condition.key == PORT_KEY);
    let of_conditions = conditions.flat_map(|condition| condition.values.iter().chain(&condition.not_values));
    ports.chain(of_conditions).filter_map(|port| port.parse().ok()).collect()
}

/// The ports that the gateway's Envoys listen on: the target ports of the services that lead to them, else the port itself.
fn bound_ports(snapshot: &Snapshot, gateway: &Gateway) -> BTreeSet<u32> {
    let numbers = gateway.servers.iter().filter_map(|server| server.port.as_ref()).map(|port| port.number);
    let is_translated = |key: &&ServiceKey| {
        snapshot.services.get(key).is_some_and(|service| service.labels.get(NO_TRANSLATION).is_none())
    };
    let services = snapshot.endpoints.services().filter(is_translated);
    let targets: Vec<(u32, u32)> = services
        .flat_map(|key| snapshot.endpoints.of(key))
        .filter(|endpoint| selects(&gateway.selector, &endpoint.labels))
        .map(|endpoint| (u32::from(endpoint.service_port_number), endpoint.port))
        .collect();
    let mut bound = BTreeSet::new();
    for number in numbers {
        let mut of_port = targets.iter().filter(|(port, _)| *port == number).map(|(_, target)| *target).peekable();
        if of_port.peek().is_none() {
            bound.insert(number);
        }
        bound.extend(of_port);
    }
    bound
}
