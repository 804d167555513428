//! Converts backend policies to DestinationRules: TLS settings and retry budgets.

use std::collections::{BTreeMap, BTreeSet};

use api::istio::networking::v1alpha3::client_tls_settings::TlSmode;
use api::istio::networking::v1alpha3::traffic_policy::{PortTrafficPolicy, RetryBudget};
use api::istio::networking::v1alpha3::{
    ClientTlsSettings, DestinationRule, LoadBalancerSettings, PortSelector, TrafficPolicy,
};
use serde_json::{Value, json};

use super::conditions::{ConditionFault, StatusConditions};
use super::conversion::Ancestors;
use super::tracked::{TrackedSnapshot, all};
use super::{KUBERNETES_GATEWAY, Output, PARENTS};
use crate::config::gateway_api::{BackendTlsPolicy, BackendTrafficPolicy, GROUP, PolicyTarget, SecretReference};
use crate::config::{Config, Kind, Meta, Spec};
use crate::duration;
use crate::hashed::Hashed;
use crate::names::CredentialKind;

const MESH_CONTROLLER: &str = "istio.io/mesh-controller";
const IGNORE: &str = "istio.io/ignore-policy-attachment";
/// Kubernetes allows at most this many ancestors in a status.
const MOST_ANCESTORS: usize = 16;

/// The effect of a policy on one host of a target.
struct PolicyEffect {
    source: String,
    age: (i64, String, String),
    section: Option<String>,
    tls: Option<ClientTlsSettings>,
    retry_budget: Option<RetryBudget>,
    is_traffic: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TargetKind {
    Service,
    ServiceEntry,
}

/// Kind, namespace and name of a target, and one of its hosts.
type TargetHost = (TargetKind, String, String, String);
type PolicyEffects = BTreeMap<TargetHost, Vec<PolicyEffect>>;

pub(super) fn convert(snapshot: &TrackedSnapshot<'_>, out: &mut Output, ancestors: &Ancestors) {
    let mut effects = PolicyEffects::new();
    if snapshot.settings().knobs.alpha_gateway_api {
        for policy in all!(snapshot, BackendTrafficPolicy) {
            traffic(snapshot, out, &policy, &mut effects);
        }
    }
    let policies: Vec<Config<BackendTlsPolicy>> = all!(snapshot, BackendTlsPolicy);
    for policy in &policies {
        tls(snapshot, out, policy, &policies, ancestors, &mut effects);
    }
    for (target, effects) in effects {
        add_rule(snapshot, out, &target, effects);
    }
}

fn is_ignored(meta: &Meta) -> bool {
    meta.annotations.get(IGNORE).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// A BackendTLSPolicy.
fn tls(
    snapshot: &TrackedSnapshot<'_>,
    out: &mut Output,
    policy: &Config<BackendTlsPolicy>,
    all: &[Config<BackendTlsPolicy>],
    ancestors: &Ancestors,
    effects: &mut PolicyEffects,
) {
    let (meta, spec) = (&policy.meta, &policy.spec);
    if is_ignored(meta) {
        return out.status(Kind::BackendTlsPolicy, meta, ignored(meta, &spec.target_refs));
    }
    let mut conditions = StatusConditions::default();
    conditions.hold("Accepted", "Accepted", "Configuration is valid");
    conditions.hold("ResolvedRefs", "ResolvedRefs", "Configuration is valid");
    let settings = ClientTlsSettings {
        mode: TlSmode::Simple.into(),
        sni: spec.validation.hostname.clone(),
        subject_alt_names: subject_alt_names(spec),
        credential_name: authority(snapshot, policy, &mut conditions),
        ..ClientTlsSettings::default()
    };
    let mut entries = Vec::new();
    let mut gateways = BTreeSet::new();
    for target in &spec.target_refs {
        match find(snapshot, meta, target) {
            Err(why) => {
                let message = format!("targetRefs invalid: {why}");
                conditions.fail("Accepted", ConditionFault::new("TargetNotFound", message));
            }
            Ok((kind, hosts)) => {
                if let Some(other) = stronger(policy, target, all) {
                    let message = format!("Conflicts with BackendTLSPolicy {other:?} targeting the same backend");
                    conditions.fail("Accepted", ConditionFault::new("Conflicted", message));
                } else {
                    secure(meta, (kind, target, hosts), &settings, effects);
                }
                let key = (target.kind.clone(), meta.namespace.to_string(), target.name.clone());
                gateways.extend(ancestors.get(&key).into_iter().flatten().cloned());
            }
        }
        // As in upstream, a fault of one target shows on all following ones.
        entries.push(ancestor(target_json(target), MESH_CONTROLLER, &conditions, meta));
    }
    for (_, gateway) in gateways {
        let reference = json!({"group": GROUP, "kind": "Gateway", "name": gateway});
        entries.push(ancestor(reference, &snapshot.settings().knobs.gateway_controller, &conditions, meta));
    }
    entries.truncate(MOST_ANCESTORS);
    out.status(Kind::BackendTlsPolicy, meta, json!({"ancestors": entries}));
}

/// Applies TLS settings to the hosts of a target.
fn secure(
    meta: &Meta,
    (kind, target, hosts): (TargetKind, &PolicyTarget, Vec<String>),
    settings: &ClientTlsSettings,
    effects: &mut PolicyEffects,
) {
    let section = target.section_name.clone().filter(|s| !s.is_empty());
    for host in hosts {
        let key = (kind, meta.namespace.to_string(), target.name.clone(), host);
        let tls = Some(settings.clone());
        let effect = PolicyEffect { section: section.clone(), tls, ..effect(Kind::BackendTlsPolicy, meta) };
        effects.entry(key).or_default().push(effect);
    }
}

/// An XBackendTrafficPolicy.
fn traffic(
    snapshot: &TrackedSnapshot<'_>,
    out: &mut Output,
    policy: &Config<BackendTrafficPolicy>,
    effects: &mut PolicyEffects,
) {
    let (meta, spec) = (&policy.meta, &policy.spec);
    if is_ignored(meta) {
        return out.status(Kind::BackendTrafficPolicy, meta, ignored(meta, &spec.target_refs));
    }
    let message = match spec.session_persistence {
        Some(_) => "Configuration is valid, but Istio does not support the following fields: sessionPersistence",
        None => "Configuration is valid",
    };
    let mut conditions = StatusConditions::default();
    conditions.hold("Accepted", "Accepted", message);
    let retry_budget = spec.retry_constraint.as_ref().map(|constraint| RetryBudget {
        percent: Some(f64::from(constraint.budget.percent)),
        budget_interval: duration::parse(&constraint.budget.interval).or_else(|| duration::parse("10s")),
        min_retry_concurrency: constraint.min_retry_rate.count,
    });
    let mut entries = Vec::new();
    for target in &spec.target_refs {
        let found = find(snapshot, meta, target).and_then(|(kind, hosts)| match kind {
            TargetKind::Service => Ok(hosts),
            TargetKind::ServiceEntry => Err(TargetError::UnsupportedReference(target.kind.clone())),
        });
        match found {
            Err(why) => {
                let message = format!("targetRefs invalid: {why}");
                conditions.fail("Accepted", ConditionFault::new("TargetNotFound", message));
            }
            Ok(hosts) => {
                for host in hosts {
                    let key = (TargetKind::Service, meta.namespace.to_string(), target.name.clone(), host);
                    let effect =
                        PolicyEffect { is_traffic: true, retry_budget, ..effect(Kind::BackendTrafficPolicy, meta) };
                    effects.entry(key).or_default().push(effect);
                }
            }
        }
        entries.push(ancestor(target_json(target), MESH_CONTROLLER, &conditions, meta));
    }
    entries.truncate(MOST_ANCESTORS);
    out.status(Kind::BackendTrafficPolicy, meta, json!({"ancestors": entries}));
}

fn effect(kind: Kind, meta: &Meta) -> PolicyEffect {
    PolicyEffect {
        source: format!("{kind}/{}.{}", meta.namespace, meta.name),
        age: (meta.created, meta.namespace.to_string(), meta.name.to_string()),
        section: None,
        tls: None,
        retry_budget: None,
        is_traffic: false,
    }
}

/// Why a target is invalid.
#[derive(Debug, thiserror::Error)]
enum TargetError {
    #[error("reference {namespace}/{name} (of kind {kind}) not found")]
    NotFound { namespace: String, name: String, kind: String },
    /// The object exists, but policies do not apply to it.
    #[error("unsupported reference kind: {0}")]
    UnsupportedReference(String),
    #[error("unsupported kind {0}")]
    UnknownKind(String),
    #[error("sectionName {section:?} does not exist in {kind} {namespace}/{name}")]
    NoSection { section: String, kind: String, namespace: String, name: String },
}

/// The kind and hosts of a target.
fn find(
    snapshot: &TrackedSnapshot<'_>,
    meta: &Meta,
    target: &PolicyTarget,
) -> Result<(TargetKind, Vec<String>), TargetError> {
    let namespace = meta.namespace.as_str();
    let PolicyTarget { name, kind: target_kind, .. } = target;
    let missing =
        || TargetError::NotFound { namespace: namespace.to_owned(), name: name.clone(), kind: target_kind.clone() };
    let (kind, hosts, ports) = match (target.group.as_str(), target.kind.as_str()) {
        ("", "Service") => {
            let service = snapshot.service(namespace, &target.name).ok_or_else(missing)?;
            let ports: Vec<String> = service.ports.iter().map(|port| port.name.to_string()).collect();
            (TargetKind::Service, vec![snapshot.host_of(namespace, &target.name)], ports)
        }
        ("networking.istio.io", "ServiceEntry") => {
            let entry = snapshot.service_entry(namespace, &target.name).ok_or_else(missing)?;
            let ports = entry.ports.iter().map(|port| port.name.clone()).collect();
            (TargetKind::ServiceEntry, entry.hosts, ports)
        }
        ("", "ConfigMap" | "Secret") => {
            let kind = if target.kind == "Secret" { CredentialKind::Secret } else { CredentialKind::ConfigMap };
            snapshot.credential(kind, namespace, &target.name).ok_or_else(missing)?;
            return Err(TargetError::UnsupportedReference(target_kind.clone()));
        }
        _ => return Err(TargetError::UnknownKind(target_kind.clone())),
    };
    if let Some(section) = target.section_name.as_ref().filter(|s| !s.is_empty() && !ports.contains(s)) {
        let (section, kind, name) = (section.clone(), target_kind.clone(), name.clone());
        return Err(TargetError::NoSection { section, kind, namespace: namespace.to_owned(), name });
    }
    Ok((kind, hosts))
}

/// The name of an older policy for the same target.
fn stronger<'a>(
    policy: &Config<BackendTlsPolicy>,
    target: &PolicyTarget,
    all: &'a [Config<BackendTlsPolicy>],
) -> Option<&'a str> {
    let age = |meta: &Meta| (meta.created, meta.name.clone());
    let stronger = |other: &&Config<BackendTlsPolicy>| {
        other.meta.namespace == policy.meta.namespace
            && !is_ignored(&other.meta)
            && other.spec.target_refs.contains(target)
            && age(&other.meta) < age(&policy.meta)
    };
    all.iter().find(stronger).map(|other| &*other.meta.name)
}

fn subject_alt_names(spec: &BackendTlsPolicy) -> Vec<String> {
    let names = spec.validation.subject_alt_names.iter().filter_map(|name| match name.kind.as_str() {
        "Hostname" => Some(name.hostname.clone()),
        "URI" => Some(name.uri.clone()),
        _ => None,
    });
    names.collect()
}

/// The SDS name of the CA certificate; empty for the system's.
fn authority(
    snapshot: &TrackedSnapshot<'_>,
    policy: &Config<BackendTlsPolicy>,
    conditions: &mut StatusConditions,
) -> String {
    let validation = &policy.spec.validation;
    if let Some(known) = &validation.well_known {
        if known != "System" {
            let message = format!("Unknown wellKnownCACertificates: {known}");
            conditions.fail("Accepted", ConditionFault::new("Invalid", message));
        }
        return String::new();
    }
    let [reference, more @ ..] = validation.ca_certificate_refs.as_slice() else { return String::new() };
    if !more.is_empty() {
        let message = "Configuration is valid; warning: only the first caCertificateRefs will be used";
        conditions.hold("Accepted", "Accepted", message);
    }
    let CaReferenceError { reason, message, why } = match credential(snapshot, &policy.meta, reference) {
        Ok(name) => return name,
        Err(unusable) => unusable,
    };
    conditions.fail("ResolvedRefs", ConditionFault::new(reason, message));
    let message = format!("Certificate reference invalid: {why}");
    conditions.fail("Accepted", ConditionFault::new("NoValidCACertificate", message));
    // This name is never served, so traffic is blocked rather than sent unverified.
    "invalid://".to_owned()
}

/// Why a CA reference is invalid: reason and message of the condition, and the bare cause.
struct CaReferenceError {
    reason: &'static str,
    message: String,
    why: String,
}

/// The SDS name of a referenced certificate.
fn credential(
    snapshot: &TrackedSnapshot<'_>,
    meta: &Meta,
    reference: &SecretReference,
) -> Result<String, CaReferenceError> {
    const INVALID: &str = "InvalidCACertificateRef";
    const KIND: &str = "InvalidKind";
    let unusable =
        |reason, what: &str, why: String| CaReferenceError { reason, message: format!("{what}: {why}"), why };
    let SecretReference { group, kind, name, .. } = reference;
    let namespace = meta.namespace.as_str();
    if (group.as_str(), kind.as_str()) == ("", "ConfigMap") {
        let Some(found) = snapshot.credential(CredentialKind::ConfigMap, namespace, name) else {
            let why = format!("reference {namespace}/{name} (of kind ConfigMap) not found");
            return Err(unusable(INVALID, "Certificate reference not found", why));
        };
        return match &found.ca_error {
            None => Ok(format!("configmap://{namespace}/{name}")),
            Some(why) => Err(unusable(INVALID, "Certificate invalid", why.to_string())),
        };
    }
    // Any other existing object has the wrong kind.
    let target = PolicyTarget { group: group.clone(), kind: kind.clone(), name: name.clone(), section_name: None };
    let error = find(snapshot, meta, &target).err().unwrap_or(TargetError::UnsupportedReference(kind.clone()));
    let (reason, what) = match error {
        TargetError::UnsupportedReference(_) => (KIND, "Certificate reference invalid"),
        TargetError::UnknownKind(_) => (KIND, "Certificate reference not supported"),
        TargetError::NotFound { .. } | TargetError::NoSection { .. } => (INVALID, "Certificate reference not found"),
    };
    Err(unusable(reason, what, error.to_string()))
}

/// Adds the DestinationRule of one host; the oldest policy wins.
fn add_rule(snapshot: &TrackedSnapshot<'_>, out: &mut Output, target: &TargetHost, mut effects: Vec<PolicyEffect>) {
    effects.sort_by(|a, b| a.age.cmp(&b.age));
    let (kind, namespace, name, host) = target;
    let mut policy = TrafficPolicy::default();
    let mut sections: BTreeMap<&str, &ClientTlsSettings> = BTreeMap::new();
    let mut parents: Vec<&str> = Vec::new();
    for effect in &effects {
        match (&effect.section, &effect.tls) {
            (Some(section), Some(tls)) => {
                sections.entry(section).or_insert(tls);
            }
            (None, Some(tls)) if policy.tls.is_none() => policy.tls = Some(tls.clone()),
            (None, Some(_)) => continue,
            (_, None) => {}
        }
        if effect.is_traffic {
            if policy.load_balancer.is_some() {
                continue;
            }
            policy.load_balancer = Some(LoadBalancerSettings::default());
            policy.retry_budget = policy.retry_budget.or(effect.retry_budget);
        }
        if !parents.contains(&effect.source.as_str()) {
            parents.push(&effect.source);
        }
    }
    for (section, tls) in sections {
        let number = port_number(snapshot, target, section).unwrap_or_default();
        policy.port_level_settings.push(PortTrafficPolicy {
            port: Some(PortSelector { number }),
            tls: Some(tls.clone()),
            ..PortTrafficPolicy::default()
        });
    }
    let spec = DestinationRule { host: host.clone(), traffic_policy: Some(policy), ..DestinationRule::default() };
    let rule = match kind {
        TargetKind::ServiceEntry => format!("{name}~{}~{KUBERNETES_GATEWAY}", host.replace('.', "-")),
        TargetKind::Service => format!("{name}~{KUBERNETES_GATEWAY}"),
    };
    let source = Meta { namespace: namespace.as_str().into(), ..Meta::default() };
    out.add(&source, rule, &[(PARENTS, parents.join(","))], Spec::DestinationRule(Hashed::from_message(spec)));
}

fn port_number(snapshot: &TrackedSnapshot<'_>, (kind, namespace, name, _): &TargetHost, section: &str) -> Option<u32> {
    match kind {
        TargetKind::ServiceEntry => {
            let entry = snapshot.service_entry(namespace, name)?;
            entry.ports.iter().find(|port| port.name == section).map(|port| port.number)
        }
        TargetKind::Service => {
            snapshot.service(namespace, name)?.port_by_name(section).map(|port| u32::from(port.number))
        }
    }
}

/// The status of a policy that is disabled by annotation.
fn ignored(meta: &Meta, targets: &[PolicyTarget]) -> Value {
    let mut conditions = StatusConditions::default();
    let message = format!("Ignored by Istio due to annotation {IGNORE}=true");
    conditions.fail("Accepted", ConditionFault::new("IgnoredByIstio", message));
    let entries = targets.iter().map(|target| ancestor(target_json(target), MESH_CONTROLLER, &conditions, meta));
    json!({"ancestors": entries.take(MOST_ANCESTORS).collect::<Vec<Value>>()})
}

fn target_json(target: &PolicyTarget) -> Value {
    let mut reference = json!({"group": target.group, "kind": target.kind, "name": target.name});
    if let Some(section) = &target.section_name {
        reference["sectionName"] = json!(section);
    }
    reference
}

fn ancestor(reference: Value, controller: &str, conditions: &StatusConditions, meta: &Meta) -> Value {
    json!({"ancestorRef": reference, "controllerName": controller, "conditions": conditions.json(meta.generation)})
}
