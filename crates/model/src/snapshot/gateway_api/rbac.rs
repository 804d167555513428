//! Converts RBAC v1alpha1 of Istio 0.8 to AuthorizationPolicies. The RbacConfig becomes policies that deny everything, or
//! allow everything where it excludes something. Each binding becomes policies that allow what its role allows. A part
//! that cannot be converted allows nothing and is reported.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::istio::security::v1beta1::rule::{From, To};
use api::istio::security::v1beta1::{AuthorizationPolicy, Condition, Operation, Rule, Source};
use api::istio::r#type::v1beta1::WorkloadSelector;

use super::tracked::{TrackedSnapshot, all};
use super::{Output, SIDECARS_ONLY};
use crate::config::legacy::{self, print};
use crate::config::print::to_json;
use crate::config::problem::{Problem, ProblemCode};
use crate::config::rbac::{
    AccessRule, Constraint, EnforcementMode, RbacConfig, RbacMode, RoleSubject, ServiceRole, ServiceRoleBinding,
};
use crate::config::{Config, Kind, Meta, Object, Spec};
use crate::hashed::Hashed;
use crate::names::Namespace;
use crate::service::Service;

const DRY_RUN: &str = "istio.io/dry-run";

/// Labels that select workloads of a namespace; empty selects all.
type WorkloadLabels = BTreeMap<String, String>;

pub(super) fn convert(snapshot: &TrackedSnapshot<'_>, out: &mut Output) {
    let (roles, bindings) = (all!(snapshot, ServiceRole), all!(snapshot, ServiceRoleBinding));
    // ClusterRbacConfig is the newer kind and wins.
    let mut switches: Vec<(Kind, Config<RbacConfig>)> =
        all!(snapshot, ClusterRbacConfig).into_iter().map(|c| (Kind::ClusterRbacConfig, c)).collect();
    switches.extend(all!(snapshot, RbacConfig).into_iter().map(|c| (Kind::RbacConfig, c)));
    let Some((kind, switch)) = switches.into_iter().next().filter(|(_, s)| s.spec.mode != RbacMode::Off) else {
        let idle = bindings.iter().map(|b| (Kind::ServiceRoleBinding, &b.meta));
        for (kind, meta) in idle {
            out.problems.push(warning(kind, meta, "has no effect: no RbacConfig enables access control"));
        }
        return;
    };
    let converter = RbacConverter { snapshot, switch: &switch.spec };
    let mut written = PolicyWriter {
        out,
        source: switch.meta.clone(),
        dry_run: is_dry(switch.spec.enforcement_mode),
        made: Vec::new(),
    };
    converter.defaults(&mut written);
    written.report(kind);
    for binding in &bindings {
        let dry_run = is_dry(switch.spec.enforcement_mode) || is_dry(binding.spec.mode);
        let mut written = PolicyWriter { out, source: binding.meta.clone(), dry_run, made: Vec::new() };
        converter.binding(binding, &roles, &mut written);
        written.report(Kind::ServiceRoleBinding);
    }
}

fn is_dry(mode: EnforcementMode) -> bool {
    mode == EnforcementMode::Permissive
}

fn warning(kind: Kind, meta: &Meta, message: &str) -> Problem {
    Problem::warning(meta.key(kind), message).at(meta.location.clone())
}

/// Writes the policies that replace one RBAC object.
struct PolicyWriter<'o> {
    out: &'o mut Output,
    source: Arc<Meta>,
    dry_run: bool,
    made: Vec<Object>,
}

impl PolicyWriter<'_> {
    fn policy(&mut self, namespace: &str, labels: &WorkloadLabels, rules: Vec<Rule>) {
        let selector = (!labels.is_empty()).then(|| WorkloadSelector { match_labels: labels.clone() });
        let spec = AuthorizationPolicy { selector, rules, ..AuthorizationPolicy::default() };
        let place = Meta { namespace: namespace.into(), ..Meta::clone(&self.source) };
        let name = format!("rbac-{}-{}", self.source.name, self.made.len() + 1);
        let dry_run = self.dry_run.then(|| (DRY_RUN, "true".to_owned()));
        let notes: Vec<(&str, String)> =
            [(SIDECARS_ONLY, "true".to_owned()), (legacy::SOURCE, format!("RBAC {}", self.source.name))]
                .into_iter()
                .chain(dry_run.clone())
                .collect();
        let spec = Spec::AuthorizationPolicy(Hashed::from_message(spec));
        self.out.add(&place, name.clone(), &notes, spec.clone());
        let annotations = dry_run.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        let shown = Meta { name: name.into(), namespace: place.namespace, annotations, ..Meta::default() };
        self.made.push(Object { meta: Arc::new(shown), spec });
    }

    fn error(&mut self, kind: Kind, message: String) {
        self.out.problems.push(Problem::error(self.source.key(kind), message).at(self.source.location.clone()));
    }

    /// Reports the equivalent policies.
    fn report(self, kind: Kind) {
        if self.made.is_empty() {
            return;
        }
        let documents: Vec<serde_json::Value> = self.made.iter().map(to_json).collect();
        let message = format!(
            "the kind is of an old Istio; pilotctl convert prints what to write instead:\n{}",
            print(&documents)
        );
        let problem = Problem::info(self.source.key(kind), message).coded(ProblemCode::Deprecated);
        self.out.problems.push(problem.at(self.source.location.clone()));
    }
}

struct RbacConverter<'a> {
    snapshot: &'a TrackedSnapshot<'a>,
    switch: &'a RbacConfig,
}

impl RbacConverter<'_> {
    /// The policies of the RbacConfig, without bindings.
    fn defaults(&self, written: &mut PolicyWriter<'_>) {
        let everyone = || vec![Rule::default()];
        match self.switch.mode {
            RbacMode::Off => {}
            RbacMode::On => self.everywhere(written),
            RbacMode::OnWithInclusion => {
                for namespace in &self.switch.inclusion.namespaces {
                    written.policy(namespace, &WorkloadLabels::new(), Vec::new());
                }
                for service in self.listed(&self.switch.inclusion.services) {
                    written.policy(&service.namespace, &labels(service), Vec::new());
                }
            }
            RbacMode::OnWithExclusion => {
                self.everywhere(written);
                for namespace in &self.switch.exclusion.namespaces {
                    written.policy(namespace, &WorkloadLabels::new(), everyone());
                }
                for service in self.listed(&self.switch.exclusion.services) {
                    written.policy(&service.namespace, &labels(service), everyone());
                }
            }
        }
    }

    fn everywhere(&self, written: &mut PolicyWriter<'_>) {
        written.policy(&self.snapshot.settings().root_namespace(), &WorkloadLabels::new(), Vec::new());
    }

    fn listed<'s>(&'s self, hosts: &'s [String]) -> impl Iterator<Item = &'s Arc<Service>> {
        self.snapshot.services().filter(|service| hosts.iter().any(|host| *host == *service.hostname))
    }

    fn holds_for_namespace(&self, namespace: &Namespace) -> bool {
        match self.switch.mode {
            RbacMode::Off => false,
            RbacMode::On => true,
            RbacMode::OnWithInclusion => has(&self.switch.inclusion.namespaces, namespace),
            RbacMode::OnWithExclusion => !has(&self.switch.exclusion.namespaces, namespace),
        }
    }

    fn holds_for(&self, service: &Service) -> bool {
        let whole = self.holds_for_namespace(&service.namespace);
        match self.switch.mode {
            RbacMode::OnWithInclusion => whole || has(&self.switch.inclusion.services, &service.hostname),
            RbacMode::OnWithExclusion => whole && !has(&self.switch.exclusion.services, &service.hostname),
            RbacMode::Off | RbacMode::On => whole,
        }
    }

    fn binding(
        &self,
        binding: &Config<ServiceRoleBinding>,
        roles: &[Config<ServiceRole>],
        written: &mut PolicyWriter<'_>,
    ) {
        let (name, namespace) = (&binding.spec.role_ref.name, &binding.meta.namespace);
        let role = roles.iter().find(|r| *r.meta.name == **name && r.meta.namespace == *namespace);
        let Some(role) = role else {
            let message =
                format!("could not convert the binding: there is no ServiceRole {namespace}/{name}; it allows nothing");
            return written.error(Kind::ServiceRoleBinding, message);
        };
        for access in &role.spec.rules {
            let mut rules = Vec::new();
            for subject in &binding.spec.subjects {
                match rule(access, subject) {
                    Ok(rule) => rules.push(rule),
                    Err(reason) => {
                        let message = format!("could not convert {reason}: this part of role {name} allows nothing");
                        written.error(Kind::ServiceRoleBinding, message);
                    }
                }
            }
            if rules.is_empty() {
                continue;
            }
            for labels in self.workloads(&access.services, namespace) {
                written.policy(namespace, &labels, rules.clone());
            }
        }
    }

    /// The workloads of services that a rule matches. Policies are made only where RBAC is enabled: elsewhere an ALLOW policy
    /// would deny all other requests.
    fn workloads(&self, patterns: &[String], namespace: &Namespace) -> Vec<WorkloadLabels> {
        if has(patterns, "*") && self.holds_for_namespace(namespace) {
            return vec![WorkloadLabels::new()];
        }
        let named = |s: &&Arc<Service>| patterns.iter().any(|pattern| matches(pattern, &s.hostname));
        let own = self.snapshot.services().filter(|s| s.namespace == *namespace);
        own.filter(named).filter(|s| self.holds_for(s)).map(|s| labels(s)).collect()
    }
}

fn has(list: &[String], item: &str) -> bool {
    list.iter().any(|one| one == item)
}

/// Exact, by prefix (`a*`), by suffix (`*a`), or anything.
fn matches(pattern: &str, host: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(suffix), _) => host.ends_with(suffix),
        (None, Some(prefix)) => host.starts_with(prefix),
        (None, None) => pattern == host,
    }
}

/// The selector of a service's workloads; by convention the `app` label if it has none.
fn labels(service: &Service) -> WorkloadLabels {
    if service.selector.is_empty() {
        let name = service.hostname.split('.').next().unwrap_or_default();
        return [("app".to_owned(), name.to_owned())].into();
    }
    service.selector.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

/// A part of a role or binding that AuthorizationPolicy cannot express.
#[derive(Debug, thiserror::Error)]
enum NotExpressible {
    #[error("the property {0:?}")]
    Property(String),
    #[error("the constraint {0:?}")]
    Constraint(String),
}

/// What one subject may do.
fn rule(access: &AccessRule, subject: &RoleSubject) -> Result<Rule, NotExpressible> {
    let (mut source, mut when) = (Source::default(), Vec::new());
    if !["", "*"].contains(&subject.user.as_str()) {
        source.principals.push(principal(&subject.user));
    }
    if !subject.group.is_empty() {
        when.push(condition("request.auth.claims[groups]", std::slice::from_ref(&subject.group)));
    }
    for (key, value) in &subject.properties {
        match key.as_str() {
            "source.namespace" | "namespace" => source.namespaces.push(value.clone()),
            "source.ip" => source.ip_blocks.push(value.clone()),
            "source.principal" | "source.user" => source.principals.push(principal(value)),
            "request.auth.principal" => source.request_principals.push(value.clone()),
            key if key.starts_with("request.auth.") || key.starts_with("request.headers[") => {
                when.push(condition(key, std::slice::from_ref(value)));
            }
            key => return Err(NotExpressible::Property(key.to_owned())),
        }
    }
    for constraint in &access.constraints {
        when.push(constrained(constraint)?);
    }
    let is_anybody = source == Source::default();
    let from = if is_anybody { Vec::new() } else { vec![From { source: Some(source) }] };
    let operation = operation(access);
    let to = if operation == Operation::default() { Vec::new() } else { vec![To { operation: Some(operation) }] };
    Ok(Rule { from, to, when })
}

fn principal(user: &str) -> String {
    user.strip_prefix("spiffe://").unwrap_or(user).to_owned()
}

fn condition(key: &str, values: &[String]) -> Condition {
    Condition { key: key.to_owned(), values: values.to_vec(), ..Condition::default() }
}

fn constrained(constraint: &Constraint) -> Result<Condition, NotExpressible> {
    let key = constraint.key.as_str();
    let is_known = ["destination.ip", "destination.port", "connection.sni"].contains(&key)
        || key.starts_with("request.headers[")
        || key.starts_with("experimental.envoy.filters.");
    if is_known && !constraint.values.is_empty() {
        return Ok(condition(key, &constraint.values));
    }
    Err(NotExpressible::Constraint(key.to_owned()))
}

fn operation(access: &AccessRule) -> Operation {
    // In AuthorizationPolicy `*` requires a value; in RBAC it matched anything.
    let any_or = |list: &[String]| if has(list, "*") { Vec::new() } else { list.to_vec() };
    let ports = |list: &[u16]| list.iter().map(u16::to_string).collect();
    Operation {
        hosts: any_or(&access.hosts),
        not_hosts: access.not_hosts.clone(),
        paths: any_or(&access.paths),
        not_paths: access.not_paths.clone(),
        methods: any_or(&access.methods),
        not_methods: access.not_methods.clone(),
        ports: ports(&access.ports),
        not_ports: ports(&access.not_ports),
    }
}

#[cfg(test)]
mod tests;
