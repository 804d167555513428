//! Objects whose selector matches no workload, or that select the same one. Workloads are pods and WorkloadEntries.

use std::collections::BTreeMap;

use super::findings::Findings;
use super::{Finding, listed};
use crate::config::problem::ProblemCode;
use crate::config::{Kind, Object, Spec};
use crate::host::resolve_short_name;
use crate::labels::selects;
use crate::names::{Namespace, Str};
use crate::service::Service;
use crate::snapshot::Snapshot;

/// Labels that select, as in `matchLabels`.
pub(super) type Selector = BTreeMap<String, String>;

/// A workload that a selector matches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SelectedWorkload {
    pub(super) namespace: Namespace,
    pub(super) name: Str,
}

/// Whether any workload is known. Without Kubernetes proxies have labels only once they are connected, so a selector that
/// matches nothing is no mistake.
pub(super) fn are_known(snapshot: &Snapshot) -> bool {
    !snapshot.workloads.is_empty()
}

/// The workloads that a selector matches, in one namespace or in all.
pub(super) fn selected(snapshot: &Snapshot, selector: &Selector, within: Option<&Namespace>) -> Vec<SelectedWorkload> {
    let is_within = |namespace: &Namespace| within.is_none_or(|only| only == namespace);
    let known: Vec<_> = match within {
        Some(namespace) => snapshot.workloads.of_namespace(namespace).collect(),
        None => snapshot.workloads.iter().collect(),
    };
    let pods = known.into_iter().filter(|w| selects(selector, &w.labels));
    let pods = pods.map(|w| SelectedWorkload { namespace: w.key.namespace.clone(), name: w.key.name.clone() });
    let entries = snapshot.objects.of(Kind::WorkloadEntry).filter(|object| match &object.spec {
        Spec::WorkloadEntry(entry) => {
            is_within(&object.meta.namespace)
                && selector.iter().all(|(key, value)| entry.open().labels.get(key) == Some(value))
        }
        _ => false,
    });
    let entries =
        entries.map(|o| SelectedWorkload { namespace: o.meta.namespace.clone(), name: o.meta.name.as_str().into() });
    pods.chain(entries).collect()
}

/// Pods of a namespace: the comparisons that it takes to find those that a selector matches there.
pub(super) fn pods_in(snapshot: &Snapshot, namespace: &Namespace) -> usize {
    snapshot.workloads.of_namespace(namespace).count()
}

/// `a=b,c=d`, as upstream prints selectors.
pub(super) fn shown(selector: &Selector) -> String {
    selector.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// A selector that matches nothing.
pub(super) fn without_workload(object: &Object, selector: &Selector, field: &str) -> Finding {
    let message = format!("Referenced selector not found: {:?}", shown(selector));
    Finding::error(ProblemCode::MissingReference, object, message).at(field)
}

/// A Telemetry with a selector needs a workload, and each workload at most one such Telemetry.
pub(super) fn telemetries(snapshot: &Snapshot, found: &mut Findings) {
    if !are_known(snapshot) {
        return;
    }
    let mut by_workload: BTreeMap<SelectedWorkload, Vec<&Object>> = BTreeMap::new();
    for object in snapshot.objects.of(Kind::Telemetry) {
        let Spec::Telemetry(spec) = &object.spec else { continue };
        let Some(selector) = spec.selector.as_ref().filter(|selector| !selector.match_labels.is_empty()) else {
            continue;
        };
        if !found.may_compare(pods_in(snapshot, &object.meta.namespace)) {
            return;
        }
        let workloads = selected(snapshot, &selector.match_labels, Some(&object.meta.namespace));
        if workloads.is_empty() {
            found.push(without_workload(object, &selector.match_labels, "spec.selector.matchLabels"));
        }
        workloads.into_iter().for_each(|workload| by_workload.entry(workload).or_default().push(object));
    }
    for (workload, objects) in by_workload.iter().filter(|(_, objects)| objects.len() > 1) {
        let names = listed(objects.iter().map(|object| &object.meta.name));
        for object in objects {
            let message = format!(
                "The Telemetries {names} in namespace {:?} select the same workload pod {:?}, which can lead to \
                 undefined behavior.",
                workload.namespace.as_str(),
                &*workload.name
            );
            found.push(Finding::error(ProblemCode::TelemetriesOfWorkload, object, message).at("spec.selector"));
        }
    }
}

/// Each subset of a DestinationRule needs a workload of its service.
pub(super) fn subsets(snapshot: &Snapshot, found: &mut Findings) {
    if !are_known(snapshot) {
        return;
    }
    for object in snapshot.objects.of(Kind::DestinationRule) {
        let Spec::DestinationRule(rule) = &object.spec else { continue };
        let host = resolve_short_name(&rule.host, &object.meta.namespace, &snapshot.settings.domain);
        let owners: Vec<_> = snapshot.services.owners(&host).filter(|service| !service.selector.is_empty()).collect();
        if owners.is_empty() {
            continue;
        }
        for (index, subset) in rule.subsets.iter().enumerate() {
            let pods = owners.iter().map(|service| pods_in(snapshot, &service.namespace)).sum();
            if !found.may_compare(pods) {
                return;
            }
            let has_workload = |service: &Service| {
                let mut labels: Selector =
                    service.selector.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
                labels.extend(subset.labels.clone());
                !selected(snapshot, &labels, Some(&service.namespace)).is_empty()
            };
            if !owners.iter().any(|service| has_workload(service)) {
                let message = format!(
                    "The Subset {} defined in the DestinationRule does not select any pods. Which may lead to 503 UH \
                     (NoHealthyUpstream).",
                    subset.name
                );
                let finding = Finding::error(ProblemCode::SubsetWithoutWorkload, object, message);
                found.push(finding.at(format!("spec.subsets[{index}].labels")));
            }
        }
    }
}
