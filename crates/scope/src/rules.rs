//! The DestinationRule that applies to a client's calls to a host.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::names::{Hostname, Namespace};
use model::service::Service;
use model::snapshot::routing::ConsolidatedRule;

use crate::client::ReadProxy;
use crate::sections::Sections;

/// DestinationRules of each imported service that has any.
pub type ImportedRules = BTreeMap<Hostname, Vec<Arc<ConsolidatedRule>>>;

/// Rules for each imported service that has any.
pub(crate) fn for_services(world: &Sections, namespace: &Namespace, services: &[Arc<Service>]) -> ImportedRules {
    let root = world.settings.root_namespace();
    let found = services.iter().map(|service| {
        let rules = world.routing.destination_rules(namespace, service, &root);
        (service.hostname.clone(), rules)
    });
    found.filter(|(_, rules)| !rules.is_empty()).collect()
}

/// The rule whose workload selector matches this client, or else the one without a selector.
pub(crate) fn choose<'a>(rules: &'a [Arc<ConsolidatedRule>], proxy: &ReadProxy) -> Option<&'a Arc<ConsolidatedRule>> {
    let selected = rules.iter().find(|r| {
        let selector = r.rule.spec.workload_selector.as_ref();
        selector
            .is_some_and(|s| r.rule.meta.namespace == *proxy.namespace && proxy.labels.is_selected_by(&s.match_labels))
    });
    selected.or_else(|| for_all(rules))
}

/// The rule without a selector.
pub(crate) fn for_all(rules: &[Arc<ConsolidatedRule>]) -> Option<&Arc<ConsolidatedRule>> {
    rules.iter().rfind(|r| r.rule.spec.workload_selector.is_none())
}
