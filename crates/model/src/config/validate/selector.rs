//! Rules of selectors, target references and exportTo.

use std::collections::{BTreeMap, BTreeSet};

use api::istio::r#type::v1beta1::{PolicyTargetReference, WorkloadSelector};

use super::names::is_dns_label;
use super::report::{Report, Rule, Violation};

/// A selector without labels is valid, but likely a mistake.
const NO_LABELS: &str = "workload selector specified without labels";

/// Group and kind of allowed targets.
const TARGETS: &[(&str, &str)] = &[
    ("", "Service"),
    ("networking.istio.io", "ServiceEntry"),
    ("gateway.networking.k8s.io", "Gateway"),
    ("gateway.networking.k8s.io", "GatewayClass"),
];

/// A selector of the newer kinds.
pub(super) fn workload(selector: Option<&WorkloadSelector>, report: &mut Report) {
    report.given("selector", selector, |report, selector| {
        selected_labels(&selector.match_labels, report);
        report.warn_if(selector.match_labels.is_empty(), NO_LABELS);
    });
}

/// A selector of Sidecar, ServiceEntry or EnvoyFilter; `kind` is for the message.
pub(super) fn networking(selector: Option<&BTreeMap<String, String>>, kind: &str, report: &mut Report) {
    report.given("workloadSelector", selector, |report, labels| {
        selected_labels(labels, report);
        let empty = format!("{kind}: {NO_LABELS}, will be applied to all services in namespace");
        report.warn_if(labels.is_empty(), empty);
    });
}

fn selected_labels(labels: &BTreeMap<String, String>, report: &mut Report) {
    for (key, value) in labels {
        let pair = format!("{key}={value}");
        report.error_if(key.is_empty(), format_args!("empty key is not supported in selector: {pair:?}"));
        report.error_if(pair.contains('*'), format_args!("wildcard is not supported in selector: {pair:?}"));
    }
}

/// A policy has either a selector or targets of allowed kinds.
pub(super) fn policy(
    selector: Option<&WorkloadSelector>,
    target: Option<&PolicyTargetReference>,
    targets: &[PolicyTargetReference],
    report: &mut Report,
) {
    let ways = [selector.is_some(), target.is_some(), !targets.is_empty()];
    let several = ways.iter().filter(|given| **given).count() > 1;
    report.error_if(several, "only one of targetRefs or workloadSelector can be set");
    workload(selector, report);
    report.given("targetRef", target, target_reference);
    report.each("targetRefs", targets, target_reference);
}

fn target_reference(report: &mut Report, target: &PolicyTargetReference) {
    report.error_if(target.name.is_empty(), "targetRef name must be set");
    report.error_if(
        !target.namespace.is_empty(),
        "targetRef namespace must not be set; cross namespace referencing is not supported",
    );
    let group = if target.group == "core" { "" } else { &target.group };
    if !TARGETS.contains(&(group, &target.kind)) {
        let names: Vec<String> = TARGETS.iter().map(|(group, kind)| format!("{group}/{kind}")).collect();
        report.error(format_args!(
            "targetRef must be to one of [{}] but was {}/{}",
            names.join(" "),
            target.group,
            target.kind
        ));
    }
}

/// The kind whose exportTo is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ExportOf {
    Rules,
    /// May be hidden from all namespaces (`~`).
    ServiceEntry,
    /// A rule with a workload selector cannot be exported.
    SelectingDestinationRule,
}

pub(super) fn export_to(namespace: &str, entries: &[String], of: ExportOf, report: &mut Report) {
    report.within("exportTo", |report| {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        for entry in entries {
            let key = if entry == "." { namespace } else { entry };
            if seen.contains(key) {
                match key == entry {
                    true => report.error(format_args!("duplicate entries in exportTo for entry {entry}")),
                    false => {
                        report.error(format_args!("duplicate entries in exportTo: . and current namespace {namespace}"))
                    }
                }
                continue;
            }
            match visible_to(key, of) {
                Ok(()) => _ = seen.insert(key),
                Err(message) => report.error(message),
            }
        }
        combination(namespace, entries.len(), &seen, of, report);
    });
}

fn visible_to(entry: &str, of: ExportOf) -> Rule {
    match entry {
        "*" => Ok(()),
        "~" if of == ExportOf::ServiceEntry => Ok(()),
        "~" => Err(Violation::from("exportTo ~ (none) is not allowed for Istio configuration objects".to_owned())),
        // `.` in a document without namespace is the empty namespace.
        "" => Ok(()),
        label if is_dns_label(label) => Ok(()),
        _ => Err(Violation::from("only .,*, or a valid DNS 1123 label is allowed as exportTo entry".to_owned())),
    }
}

fn combination(namespace: &str, given: usize, seen: &BTreeSet<&str>, of: ExportOf, report: &mut Report) {
    if of == ExportOf::SelectingDestinationRule && !seen.is_empty() {
        match seen.contains(namespace) {
            true => report.error_if(
                seen.len() > 1,
                "destination rule with workload selector cannot have multiple entries in exportTo",
            ),
            false => {
                report.error("destination rule with workload selector cannot have exportTo beyond current namespace")
            }
        }
    }
    let both = "cannot have both public (*) and non-public exportTo values for a resource";
    report.error_if(seen.contains("*") && given > 1, both);
    report.error_if(seen.contains("~") && given > 1, "cannot export service entry to no one (~) and someone");
}
