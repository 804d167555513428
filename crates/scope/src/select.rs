//! Decides which policies apply to a workload: those of the root namespace and of its namespace, by selector or target.

use std::collections::BTreeMap;

use api::istio::extensions::v1alpha1::TrafficExtension;
use api::istio::networking::v1alpha3::EnvoyFilter;
use api::istio::r#type::v1beta1::PolicyTargetReference;
use model::names::Namespace;
use model::settings::Knobs;

use crate::client::Selectable;

const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";

/// A policy that selects its workloads by labels or by reference.
pub trait Targeted {
    fn selector(&self) -> Option<&BTreeMap<String, String>>;
    fn targets(&self) -> Vec<&PolicyTargetReference>;
}

macro_rules! targeted {
    ($($policy:ty),*) => {
        $(impl Targeted for $policy {
            fn selector(&self) -> Option<&BTreeMap<String, String>> {
                self.selector.as_ref().map(|selector| &selector.match_labels)
            }

            fn targets(&self) -> Vec<&PolicyTargetReference> {
                // The single reference is the older form; the list takes precedence.
                if self.target_refs.is_empty() { self.target_ref.iter().collect() } else { self.target_refs.iter().collect() }
            }
        })*
    };
}

targeted!(
    api::istio::security::v1beta1::AuthorizationPolicy,
    api::istio::security::v1beta1::RequestAuthentication,
    api::istio::telemetry::v1alpha1::Telemetry
);

impl Targeted for TrafficExtension {
    fn selector(&self) -> Option<&BTreeMap<String, String>> {
        self.selector.as_ref().map(|selector| &selector.match_labels)
    }

    fn targets(&self) -> Vec<&PolicyTargetReference> {
        self.target_refs.iter().collect()
    }
}

impl Targeted for EnvoyFilter {
    fn selector(&self) -> Option<&BTreeMap<String, String>> {
        self.workload_selector.as_ref().map(|selector| &selector.labels)
    }

    fn targets(&self) -> Vec<&PolicyTargetReference> {
        self.target_refs.iter().collect()
    }
}

/// Whether policies without a target apply to proxies of the Gateway API.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selectors {
    ForAll,
    NotForGateways,
}

impl Selectors {
    pub(crate) fn of(knobs: &Knobs) -> Selectors {
        if knobs.selectors_reach_gateways { Selectors::ForAll } else { Selectors::NotForGateways }
    }
}

pub(crate) fn attaches(
    policy: &impl Targeted,
    namespace: &Namespace,
    workload: &Namespace,
    labels: &impl Selectable,
    selectors: Selectors,
) -> bool {
    let targets = policy.targets();
    if targets.is_empty() {
        let reached = selectors == Selectors::ForAll || labels.get(GATEWAY_NAME).is_none();
        return reached && policy.selector().is_none_or(|wanted| labels.is_selected_by(wanted));
    }
    let Some(gateway) = labels.get(GATEWAY_NAME) else { return false };
    let is_gateway = |t: &&PolicyTargetReference| t.group == "gateway.networking.k8s.io" && t.kind == "Gateway";
    let here = |t: &&PolicyTargetReference| t.namespace.is_empty() || t.namespace == workload.as_str();
    namespace == workload && targets.iter().copied().filter(is_gateway).filter(here).any(|t| *t.name == **gateway)
}
