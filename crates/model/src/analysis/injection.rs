//! Namespaces and pods without a sidecar. The injector labels what it injects, so containers need not be known.

use std::collections::BTreeSet;

use super::findings::Findings;
use super::{Finding, listed};
use crate::config::problem::{ProblemCode, Severity, Subject};
use crate::labels::Labels;
use crate::names::Namespace;
use crate::snapshot::Snapshot;

/// The labels of a namespace that ask for injection.
const INJECTION: &str = "istio-injection";
const REVISION: &str = "istio.io/rev";
const DATAPLANE: &str = "istio.io/dataplane-mode";
/// Set by the injector.
const INJECTED: &str = "security.istio.io/tlsMode";
/// Set on pods that refuse.
const REFUSED: &str = "sidecar.istio.io/inject";

/// Namespaces say once whether their pods are injected, and pods of those that are have a sidecar.
pub(super) fn sidecars(snapshot: &Snapshot, found: &mut Findings) {
    let root = snapshot.settings.root_namespace();
    let mut injected: BTreeSet<&Namespace> = BTreeSet::new();
    for (namespace, labels) in snapshot.namespaces.iter() {
        if *namespace == root || namespace.as_str().starts_with("kube-") {
            continue;
        }
        let own = value(labels, INJECTION);
        let is_on = own.is_none_or(|own| own == "enabled");
        let others = [REVISION, DATAPLANE].into_iter().filter_map(|key| Some((key, value(labels, key)?)));
        let all: Vec<String> = own
            .map(|own| (INJECTION, own))
            .into_iter()
            .chain(others.filter(|_| is_on))
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let about = Subject::Document { kind: "Namespace".into(), namespace: None, name: namespace.as_str().into() };
        if all.len() > 1 {
            let message = format!(
                "The namespace has more than one type of injection labels {}, which may lead to undefined behavior. Make \
                 sure only one injection label exists.",
                listed(all)
            );
            found.push(finding(ProblemCode::InjectionLabels, Severity::Warning, about, message));
        } else if all.is_empty() {
            let message = format!(
                "The namespace is not enabled for Istio injection. Run 'kubectl label namespace {namespace} \
                 istio-injection=enabled' to enable it, or 'kubectl label namespace {namespace} istio-injection=disabled' to \
                 explicitly mark it as not needing injection."
            );
            found.push(finding(ProblemCode::NotInjected, Severity::Info, about, message));
        } else if own == Some("enabled") {
            injected.insert(namespace);
        }
    }
    for workload in snapshot.workloads.iter().filter(|workload| injected.contains(&workload.key.namespace)) {
        let refuses = value(&workload.labels, REFUSED).is_some_and(|value| value.eq_ignore_ascii_case("false"));
        if !refuses && value(&workload.labels, INJECTED).is_none() {
            let (namespace, name) = (&workload.key.namespace, &workload.key.name);
            let message = format!(
                "The pod {namespace}/{name} is missing the Istio proxy. This can often be resolved by restarting or \
                 redeploying the workload."
            );
            let about =
                Subject::Document { kind: "Pod".into(), namespace: Some(namespace.clone()), name: name.clone() };
            // Pods of the node's network and those that refuse by an annotation look the same.
            found.push(finding(ProblemCode::MissingProxy, Severity::Info, about, message));
        }
    }
}

fn value<'a>(labels: &'a Labels, key: &str) -> Option<&'a str> {
    labels.get(key).map(|value| &**value)
}

fn finding(code: ProblemCode, severity: Severity, about: Subject, message: String) -> Finding {
    Finding { code, severity, location: None, field: String::new(), about, message }
}
