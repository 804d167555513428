//! Places what legacy objects become (`config/legacy`) in the mesh, whatever store they come from. Rules of Istio 0.8 held
//! for the whole mesh: routes and policies of one service are put into its namespace, where they are joined.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use api::istio::networking::v1alpha3::{DestinationRule, VirtualService};
use serde_json::{Map, Value};

use super::Output;
use super::tracked::TrackedSnapshot;
use crate::config::legacy::{self, LegacyMesh};
use crate::config::problem::Problem;
use crate::config::validate::validate_legacy;
use crate::config::{Config, Kind, Meta, Object, Spec};
use crate::hashed::{Hashed, fingerprint};
use crate::names::{Namespace, ServiceKey, Str};
use crate::service::Service;
use crate::snapshot::Snapshot;
use crate::snapshot::routing::{with_full_names, with_resolved_host};

/// Kinds with an effect, in the order of their conversion.
const KINDS: &[Kind] = &[
    Kind::DestinationPolicy,
    Kind::RouteRule,
    Kind::IngressRule,
    Kind::EgressRule,
    Kind::AuthenticationPolicy,
    Kind::AuthenticationMeshPolicy,
];

/// Converted objects by the fingerprint of the legacy object.
pub(super) type LegacyCache = HashMap<u128, Arc<Vec<Object>>>;

/// A legacy object and what it becomes.
struct ConvertedLegacy<'a> {
    source: &'a Object,
    objects: Arc<Vec<Object>>,
}

pub(super) fn convert(snapshot: &TrackedSnapshot<'_>, before: &LegacyCache, out: &mut Output) -> LegacyCache {
    let mut cache = LegacyCache::new();
    let all: Vec<ConvertedLegacy<'_>> = KINDS
        .iter()
        .flat_map(|kind| snapshot.objects().of(*kind))
        .map(|source| ConvertedLegacy { source, objects: converted(source, snapshot, before, &mut cache) })
        .collect();
    if all.is_empty() {
        return cache;
    }
    let mut placement = LegacyPlacement { snapshot, out, homes: BTreeMap::new(), guests: BTreeMap::new() };
    placement.find_homes(&all);
    for one in &all {
        one.objects.iter().for_each(|object| placement.place(one.source, object));
    }
    placement.report_repeated_policies(&all);
    cache
}

/// The objects of one legacy object. Invalid ones become none; validation reports them.
fn converted(
    source: &Object,
    snapshot: &TrackedSnapshot<'_>,
    before: &LegacyCache,
    cache: &mut LegacyCache,
) -> Arc<Vec<Object>> {
    let settings = snapshot.settings();
    let root = settings.root_namespace();
    let workloads = |namespace: &str, name: &str| -> Option<Map<String, Value>> {
        snapshot.service(namespace, name).map(|service| selector_of(service))
    };
    let mesh = LegacyMesh { root_namespace: &root, domain: &settings.domain, workloads_of: &workloads };
    let convert = || {
        let conversion = legacy::convert(source, mesh).and_then(Result::ok);
        conversion.map(|it| legacy::objects(&it, &source.meta).objects).unwrap_or_default()
    };
    // Policies depend on services too; there are few of them.
    if matches!(source.spec.kind(), Kind::AuthenticationPolicy | Kind::AuthenticationMeshPolicy) {
        return Arc::new(convert());
    }
    let key = fingerprint(&(source, &settings.domain));
    let objects = before.get(&key).cloned().unwrap_or_else(|| Arc::new(convert()));
    cache.insert(key, objects.clone());
    objects
}

fn selector_of(service: &Service) -> Map<String, Value> {
    service.selector.iter().map(|(key, value)| (key.to_string(), Value::from(&**value))).collect()
}

impl Snapshot {
    /// Validates a legacy object as it is converted in this mesh: what services select is known.
    pub fn legacy_problems(&self, object: &Object) -> Vec<Problem> {
        let root = self.settings.root_namespace();
        let workloads = |namespace: &str, name: &str| {
            let hostname = format!("{name}.{namespace}.svc.{}", self.settings.domain).into();
            self.services.get(&ServiceKey { hostname, namespace: namespace.into() }).map(|service| selector_of(service))
        };
        let mesh = LegacyMesh { root_namespace: &root, domain: &self.settings.domain, workloads_of: &workloads };
        validate_legacy(object, mesh)
    }
}

/// Decides where converted objects go.
struct LegacyPlacement<'a, 'o> {
    snapshot: &'a TrackedSnapshot<'a>,
    out: &'o mut Output,
    /// The namespace of each destination.
    homes: BTreeMap<String, Namespace>,
    /// Further namespaces that have policies for a destination: clients there see only these.
    guests: BTreeMap<String, BTreeSet<Namespace>>,
}

impl LegacyPlacement<'_, '_> {
    fn find_homes(&mut self, all: &[ConvertedLegacy<'_>]) {
        for object in all.iter().flat_map(|one| one.objects.iter()) {
            let host = match self.resolved(object) {
                Some(Placeable::Rule(rule)) => {
                    if rule.spec.workload_selector.is_some() {
                        let guests = self.guests.entry(rule.spec.host.clone()).or_default();
                        guests.insert(object.meta.namespace.clone());
                    }
                    rule.spec.host.clone()
                }
                Some(Placeable::Routes(routes)) => routes.spec.hosts.first().cloned().unwrap_or_default(),
                None => continue,
            };
            let found = self.home_of(&host, &object.meta.namespace);
            // Without an owner all rules go to the first namespace in alphabetical order.
            let home = self.homes.entry(host).or_insert_with(|| found.clone());
            *home = found.min(home.clone());
        }
    }

    /// The namespace of a host's service, or the one that its name has.
    fn home_of(&self, host: &str, of_rule: &Namespace) -> Namespace {
        if let Some(owner) = self.snapshot.owners(host).map(|service| &service.namespace).min() {
            return owner.clone();
        }
        let suffix = format!(".svc.{}", self.snapshot.settings().domain);
        let named = host.strip_suffix(&suffix).and_then(|rest| rest.rsplit_once('.'));
        named.map_or_else(|| of_rule.clone(), |(_, namespace)| namespace.into())
    }

    /// Routes of sidecars and destination rules, with full names; `None` for objects that stay where they are.
    fn resolved(&self, object: &Object) -> Option<Placeable> {
        let settings = self.snapshot.settings();
        let meta = object.meta.clone();
        match &object.spec {
            Spec::VirtualService(spec) if legacy::precedence(&meta).is_some() => {
                Some(Placeable::Routes(with_full_names(Config { meta, spec: spec.clone() }, settings)))
            }
            Spec::DestinationRule(spec) => {
                Some(Placeable::Rule(with_resolved_host(Config { meta, spec: spec.clone() }, settings)))
            }
            _ => None,
        }
    }

    fn place(&mut self, source: &Object, object: &Object) {
        let kind = source.spec.kind();
        let own = object.meta.namespace.clone();
        match self.resolved(object) {
            Some(Placeable::Routes(routes)) => {
                let host = routes.spec.hosts.first().cloned().unwrap_or_default();
                let home = self.homes.get(&host).cloned().unwrap_or(own);
                self.put(source, object, home, Spec::VirtualService(routes.spec));
            }
            Some(Placeable::Rule(rule)) if rule.spec.workload_selector.is_some() => {
                self.put(source, object, own, Spec::DestinationRule(rule.spec));
            }
            Some(Placeable::Rule(rule)) => {
                let home = self.homes.get(&rule.spec.host).cloned().unwrap_or(own);
                let guests = self.guests.get(&rule.spec.host).cloned().unwrap_or_default();
                for namespace in guests.into_iter().chain([home]).collect::<BTreeSet<_>>() {
                    self.put(source, object, namespace, Spec::DestinationRule(rule.spec.clone()));
                }
            }
            None => {
                let spec = match &object.spec {
                    Spec::VirtualService(spec) if kind == Kind::IngressRule => {
                        Spec::VirtualService(bound(source, spec))
                    }
                    other => other.clone(),
                };
                self.put(source, object, own, spec);
            }
        }
    }

    fn put(&mut self, source: &Object, object: &Object, namespace: Namespace, spec: Spec) {
        let mut annotations = object.meta.annotations.clone();
        annotations.insert(legacy::SOURCE.into(), source.key().to_string().into());
        let meta = Meta {
            name: placed_name(&object.meta.name, source, &namespace),
            namespace,
            labels: object.meta.labels.clone(),
            annotations,
            created: object.meta.created,
            location: object.meta.location.clone(),
            ..Meta::default()
        };
        self.out.objects.insert(Object { meta: Arc::new(meta), spec });
    }

    /// Of several policies for the same workloads only the oldest has an effect.
    fn report_repeated_policies(&mut self, all: &[ConvertedLegacy<'_>]) {
        let mut policies: Vec<&ConvertedLegacy<'_>> =
            all.iter().filter(|one| one.source.spec.kind() == Kind::DestinationPolicy).collect();
        policies.sort_by_key(|one| {
            let Meta { created, name, namespace, .. } = &*one.source.meta;
            (*created, name.clone(), namespace.clone())
        });
        let mut known: BTreeMap<PolicyTarget, &Object> = BTreeMap::new();
        for one in policies {
            for object in one.objects.iter() {
                let Some(Placeable::Rule(rule)) = self.resolved(object) else { continue };
                match known.get(&target(&rule)) {
                    None => _ = known.insert(target(&rule), one.source),
                    Some(first) => {
                        let message =
                            format!("has no effect: {} is older and has the same destination and source", first.key());
                        let problem = Problem::warning(one.source.key(), message);
                        self.out.problems.push(problem.at(one.source.meta.location.clone()));
                    }
                }
            }
        }
    }
}

/// An object whose namespace depends on its destination.
enum Placeable {
    Routes(Config<VirtualService>),
    Rule(Config<DestinationRule>),
}

/// Host, subset and callers of a DestinationPolicy.
type PolicyTarget = (String, Option<String>, Option<(Namespace, Vec<(String, String)>)>);

fn target(rule: &Config<DestinationRule>) -> PolicyTarget {
    let callers = rule.spec.workload_selector.as_ref().map(|selector| {
        let labels = selector.match_labels.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        (rule.meta.namespace.clone(), labels)
    });
    (rule.spec.host.clone(), rule.spec.subsets.first().map(|subset| subset.name.clone()), callers)
}

/// A name that no other converted object has. User's objects are stored apart.
fn placed_name(name: &str, source: &Object, namespace: &Namespace) -> Str {
    let kind = source.spec.kind().as_str().to_lowercase();
    match source.meta.namespace == *namespace || source.meta.namespace.is_empty() {
        true => format!("{name}.{kind}").into(),
        false => format!("{name}.{kind}.{}", source.meta.namespace).into(),
    }
}

/// The routes of an IngressRule, bound to the Gateway that was made for it.
fn bound(source: &Object, spec: &Hashed<VirtualService>) -> Hashed<VirtualService> {
    let namespace = &source.meta.namespace;
    let gateways = spec.gateways.iter().map(|name| format!("{namespace}/{}", placed_name(name, source, namespace)));
    let spec = VirtualService { gateways: gateways.collect(), ..VirtualService::clone(spec) };
    Hashed::from_message(spec)
}

#[cfg(test)]
mod tests;
