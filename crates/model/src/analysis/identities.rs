//! AuthorizationPolicies that deny by the identity of the caller, where workloads accept plain text: such a caller has no
//! identity, so the rule does not match it (ISTIO-SECURITY-2021-004). Rules that allow by identity deny plain text and are
//! safe.

use std::collections::BTreeMap;

use api::istio::security::v1beta1::authorization_policy::Action;
use api::istio::security::v1beta1::{AuthorizationPolicy, Rule, Source};

use super::Finding;
use super::findings::Findings;
use super::spellings::policies;
use crate::config::Object;
use crate::config::problem::ProblemCode;
use crate::labels::{Labels, selects};
use crate::names::Namespace;
use crate::peer_policies::{MutualTls, PeerPolicies};
use crate::snapshot::Snapshot;

/// Condition keys of identities.
const IDENTITY_KEYS: [&str; 3] = ["source.principal", "source.namespace", "source.serviceAccount"];

/// Workloads of a policy that denies by identity must not accept plain text.
pub(super) fn in_plain_text(snapshot: &Snapshot, found: &mut Findings) {
    let root = snapshot.settings.root_namespace();
    let peers = PeerPolicies::new(&snapshot.policy, &root);
    for (object, policy) in policies(snapshot) {
        let workloads = match object.meta.namespace == root {
            true => snapshot.workloads.len(),
            false => snapshot.workloads.of_namespace(&object.meta.namespace).count(),
        };
        if !found.may_compare(workloads.saturating_mul(policy.rules.len())) {
            return;
        }
        let denying = policy.rules.iter().filter_map(|rule| Some((rule, denied_by(policy.action(), rule)?)));
        let of_plain_text = denying.filter_map(|(rule, field)| {
            let workloads = SelectedWorkloads { snapshot, peers, root: &root, object, policy };
            Some((field, workloads.first_in_plain_text(&ports(rule))?))
        });
        for (field, (about, mode)) in of_plain_text.take(1) {
            let message = format!(
                "AuthorizationPolicy {} denies by {field}, which callers in plain text do not have, and {about} accepts \
                 plain text (mutual TLS is {mode}): the rule does not match such callers. Set mutual TLS to STRICT with a \
                 PeerAuthentication, or allow the permitted callers by name instead.",
                super::full_name(&object.meta)
            );
            found.push(Finding::warning(ProblemCode::PlainTextIdentity, object, message).at("spec.rules"));
        }
    }
}

/// The identity field by which a rule denies: plain fields where matching callers are denied, `not…` fields where matching
/// callers are allowed. AUDIT denies nothing.
fn denied_by(action: Action, rule: &Rule) -> Option<&'static str> {
    let mut sources = rule.from.iter().filter_map(|from| from.source.as_ref());
    let mut identities = rule.when.iter().filter(|condition| IDENTITY_KEYS.contains(&condition.key.as_str()));
    match action {
        Action::Deny | Action::Custom => sources
            .find_map(named_identity)
            .or_else(|| identities.any(|condition| !condition.values.is_empty()).then_some("a condition")),
        Action::Allow => sources
            .find_map(excluded_identity)
            .or_else(|| identities.any(|condition| !condition.not_values.is_empty()).then_some("a condition")),
        Action::Audit => None,
    }
}

fn named_identity(source: &Source) -> Option<&'static str> {
    first([
        ("principals", &source.principals),
        ("namespaces", &source.namespaces),
        ("serviceAccounts", &source.service_accounts),
        ("trustDomains", &source.trust_domains),
    ])
}

fn excluded_identity(source: &Source) -> Option<&'static str> {
    first([
        ("notPrincipals", &source.not_principals),
        ("notNamespaces", &source.not_namespaces),
        ("notServiceAccounts", &source.not_service_accounts),
        ("notTrustDomains", &source.not_trust_domains),
    ])
}

/// The first field that has values.
fn first(fields: [(&'static str, &Vec<String>); 4]) -> Option<&'static str> {
    fields.into_iter().find(|(_, values)| !values.is_empty()).map(|(name, _)| name)
}

/// The ports that a rule is for; empty for all.
fn ports(rule: &Rule) -> Vec<u32> {
    let operations = rule.to.iter().filter_map(|to| to.operation.as_ref());
    operations.flat_map(|operation| &operation.ports).filter_map(|port| port.parse().ok()).collect()
}

/// The workloads of one policy.
struct SelectedWorkloads<'a> {
    snapshot: &'a Snapshot,
    peers: PeerPolicies<'a>,
    root: &'a Namespace,
    object: &'a Object,
    policy: &'a AuthorizationPolicy,
}

impl SelectedWorkloads<'_> {
    /// A workload that accepts plain text on one of these ports, or on any, and its mode. Without known workloads, what the
    /// labels of the policy's selector stand for. Modes do not apply to gateways, and policies with targets are for
    /// gateways and services.
    fn first_in_plain_text(&self, ports: &[u32]) -> Option<(String, &'static str)> {
        if self.policy.target_ref.is_some() || !self.policy.target_refs.is_empty() || self.is_for_gateway() {
            return None;
        }
        let namespace = &self.object.meta.namespace;
        let none = BTreeMap::new();
        let selector = self.policy.selector.as_ref().map_or(&none, |selector| &selector.match_labels);
        let known: Vec<_> = match namespace == self.root {
            true => self.snapshot.workloads.iter().collect(),
            false => self.snapshot.workloads.of_namespace(namespace).collect(),
        };
        let mut selected = known.into_iter().filter(|workload| selects(selector, &workload.labels)).peekable();
        if selected.peek().is_none() {
            let mode = self.mode(namespace, &Labels::from(selector), ports)?;
            return Some((format!("namespace {namespace}"), mode));
        }
        selected.find_map(|workload| {
            let mode = self.mode(&workload.key.namespace, &workload.labels, ports)?;
            Some((format!("workload {}/{}", workload.key.namespace, workload.key.name), mode))
        })
    }

    /// The mode, if it admits plain text on one of these ports.
    fn mode(&self, namespace: &Namespace, labels: &Labels, ports: &[u32]) -> Option<&'static str> {
        let modes = match ports {
            [] => {
                let of_ports = self.peers.ports_of_workload(namespace, labels).into_values();
                of_ports.chain([self.peers.of_workload(namespace, labels, 0)]).collect()
            }
            ports => Vec::from_iter(ports.iter().map(|port| self.peers.of_workload(namespace, labels, *port))),
        };
        modes.into_iter().find_map(|mode| match mode {
            MutualTls::Disable => Some("DISABLE"),
            MutualTls::Permissive => Some("PERMISSIVE"),
            MutualTls::Strict => None,
        })
    }

    /// Whether a Gateway has the policy's selector.
    fn is_for_gateway(&self) -> bool {
        let selector = self.policy.selector.as_ref().map(|selector| Labels::from(&selector.match_labels));
        selector.is_some_and(|selector| super::gateway_ports::of(self.snapshot, &selector).next().is_some())
    }
}
