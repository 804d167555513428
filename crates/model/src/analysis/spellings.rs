//! AuthorizationPolicies that another spelling of the path or host bypasses. Envoy compares strings: without path
//! normalization `//admin` and `/admin%2F` do not equal `/admin`, and `admin.example:8080` never equals `admin.example`.
//! Only rules that deny can be bypassed; rules that allow then deny more.

use api::istio::mesh::v1alpha1::mesh_config::proxy_path_normalization::NormalizationType;
use api::istio::security::v1beta1::authorization_policy::Action;
use api::istio::security::v1beta1::{AuthorizationPolicy, Operation};

use super::Finding;
use super::findings::Findings;
use crate::config::problem::ProblemCode;
use crate::config::{Kind, Object, Spec};
use crate::snapshot::Snapshot;

/// Condition keys of the host header.
const HOST_KEYS: [&str; 2] = ["request.headers[:authority]", "request.headers[host]"];

/// Denied paths need path normalization.
pub(super) fn paths(snapshot: &Snapshot, found: &mut Findings) {
    let normalization = snapshot.settings.path_normalization();
    if normalization == NormalizationType::DecodeAndMergeSlashes {
        return;
    }
    for (object, policy) in policies(snapshot) {
        let (field, listed) = denying(policy, "paths", "notPaths", |to| (&to.paths, &to.not_paths));
        let Some(path) = listed.into_iter().find(|path| !matches!(path.as_str(), "*" | "/*")) else { continue };
        let message = format!(
            "AuthorizationPolicy {} denies by {field} {path:?}, and {} are other paths to Envoy that servers may take for \
             the same. Set meshConfig.pathNormalization.normalization to DECODE_AND_MERGE_SLASHES (it is {}), or \
             PILOTAGE_STRICT_AUTHORIZATION=true on the control plane.",
            super::full_name(&object.meta),
            path_spellings(path, normalization).join(" and "),
            normalization.as_str_name(),
        );
        found.push(Finding::warning(ProblemCode::PathSpelling, object, message).at("spec.rules"));
    }
}

/// Denied hosts must also be denied with a port.
pub(super) fn hosts(snapshot: &Snapshot, found: &mut Findings) {
    if snapshot.settings.knobs.strict_authorization {
        return;
    }
    for (object, policy) in policies(snapshot) {
        let (field, listed) = denying(policy, "hosts", "notHosts", |to| (&to.hosts, &to.not_hosts));
        let about = super::full_name(&object.meta);
        let strict = "set PILOTAGE_STRICT_AUTHORIZATION=true on the control plane";
        if let Some(host) = listed.iter().find(|host| is_without_port(host, &listed)) {
            let name = host.trim_start_matches('*');
            let way = match host.starts_with('*') {
                true => format!("Add \"{host}:PORT\" for each port, or {strict}."),
                false => format!("Add \"{host}:*\", or {strict}."),
            };
            let message = format!(
                "AuthorizationPolicy {about} denies by {field} {host:?}, which a request with a port or final dot in its \
                 Host header (\"{name}:8080\", \"{name}.\") is not for. {way}"
            );
            found.push(Finding::warning(ProblemCode::HostSpelling, object, message).at("spec.rules"));
        }
        if let Some(key) = compared_header(policy) {
            let message = format!(
                "AuthorizationPolicy {about} denies by {key}, which is compared with its case, port and final dot. Use \
                 hosts of an operation, or {strict}."
            );
            found.push(Finding::warning(ProblemCode::HostSpelling, object, message).at("spec.rules"));
        }
    }
}

pub(super) fn policies(snapshot: &Snapshot) -> impl Iterator<Item = (&Object, &AuthorizationPolicy)> {
    snapshot.objects.of(Kind::AuthorizationPolicy).filter_map(|object| match &object.spec {
        Spec::AuthorizationPolicy(spec) => Some((object, &**spec)),
        _ => None,
    })
}

/// Values that deny requests, with the name of their field: `not…` fields of ALLOW rules, and plain fields of others.
fn denying<'a>(
    policy: &'a AuthorizationPolicy,
    named: &'static str,
    excluded: &'static str,
    of: impl Fn(&'a Operation) -> (&'a Vec<String>, &'a Vec<String>),
) -> (&'static str, Vec<&'a String>) {
    let operations = policy.rules.iter().flat_map(|rule| &rule.to).filter_map(|to| to.operation.as_ref()).map(of);
    match policy.action() {
        Action::Allow => (excluded, operations.flat_map(|(_, not)| not).collect()),
        Action::Deny | Action::Custom => (named, operations.flat_map(|(texts, _)| texts).collect()),
        // AUDIT denies nothing.
        Action::Audit => (named, Vec::new()),
    }
}

/// The key of a host header in a condition that denies.
fn compared_header(policy: &AuthorizationPolicy) -> Option<&str> {
    let mut conditions = policy.rules.iter().flat_map(|rule| &rule.when);
    let denies = |values: &[String], not_values: &[String]| match policy.action() {
        Action::Allow => !not_values.is_empty(),
        Action::Deny | Action::Custom => values.iter().any(|value| value != "*"),
        Action::Audit => false,
    };
    conditions
        .find(|condition| {
            let is_host = HOST_KEYS.iter().any(|key| condition.key.eq_ignore_ascii_case(key));
            is_host && denies(&condition.values, &condition.not_values)
        })
        .map(|condition| condition.key.as_str())
}

/// Whether this entry is a host without a port, and no entry matches the same host with a port.
fn is_without_port(host: &str, all: &[&String]) -> bool {
    let with_port = format!("{host}:");
    let covers = |other: &str| other.strip_suffix('*').is_some_and(|start| with_port.starts_with(start));
    !host.contains(':') && !host.ends_with('*') && !all.iter().any(|other| covers(other))
}

/// Other spellings of a path that this normalization does not unify.
fn path_spellings(path: &str, normalization: NormalizationType) -> Vec<String> {
    let is_suffix = path.starts_with('*');
    let text = path.trim_matches('*');
    let escaped = match text.rsplit_once('/') {
        Some((before, after)) if !before.is_empty() => format!("{before}%2F{after}"),
        Some((_, after)) if is_suffix => format!("/x%2F{after}"),
        _ => format!("{text}%2F"),
    };
    let mut spellings = Vec::new();
    if normalization == NormalizationType::None {
        spellings.push(format!("/.{text}"));
    }
    if normalization != NormalizationType::MergeSlashes && !is_suffix {
        spellings.push(format!("/{text}"));
    }
    spellings.push(escaped);
    spellings
}
