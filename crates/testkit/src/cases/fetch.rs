//! Fetches everything that an Envoy with this node would subscribe to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::{Resource, TypeUrl};
use parking_lot::Mutex;
use serde_json::Value;

use super::{Case, CaseProxy, KINDS};
use crate::canonical;

/// The server under test for one case: returns the resources of a proxy, by type and names. No names means all.
pub type ResourceLookup = Box<dyn Fn(&CaseProxy, &TypeUrl, &[String]) -> Vec<Resource>>;

/// Cache of canonical forms by type and version: most resources occur in many cases.
#[derive(Default)]
pub(super) struct CanonicalForms(Mutex<BTreeMap<(TypeUrl, api::Version), Arc<Value>>>);

impl CanonicalForms {
    pub(super) fn of(&self, kind: &TypeUrl, resource: &Resource) -> Arc<Value> {
        let key = (kind.clone(), resource.version);
        if let Some(known) = self.0.lock().get(&key) {
            return Arc::clone(known);
        }
        let form = Arc::new(canonical::json(kind.as_str(), &resource.body.joined()));
        self.0.lock().insert(key, Arc::clone(&form));
        form
    }
}

/// Canonical resources by type.
pub(super) type FetchedResources = BTreeMap<&'static str, Vec<Arc<Value>>>;

/// Fetches all types in Envoy's order. Names of endpoints and routes follow from clusters and listeners.
pub(super) fn fetch(answers: &ResourceLookup, proxy: &CaseProxy, forms: &CanonicalForms) -> FetchedResources {
    let mut got = FetchedResources::new();
    let mut wanted: BTreeMap<TypeUrl, BTreeSet<String>> = BTreeMap::new();
    for (name, kind) in KINDS {
        let names: Vec<String> = wanted.remove(&kind).unwrap_or_default().into_iter().collect();
        let wildcard = is_wildcard(&kind) || (kind == TypeUrl::NAME_TABLE && proxy.wants_names());
        if !wildcard && names.is_empty() {
            continue;
        }
        let resources: Vec<Arc<Value>> = answers(proxy, &kind, &names).iter().map(|r| forms.of(&kind, r)).collect();
        if kind == TypeUrl::CLUSTER {
            wanted.entry(TypeUrl::ENDPOINT).or_default().extend(resources.iter().filter_map(|c| eds_name(c)));
        } else if kind == TypeUrl::LISTENER {
            resources.iter().for_each(|listener| references(listener, &mut wanted));
        }
        got.insert(name, resources);
    }
    got
}

/// Fetches only some types, by the recorded names: for work on a type while the type that refers to it is not
/// implemented yet.
pub(super) fn fetch_recorded(
    answers: &ResourceLookup,
    case: &Case,
    proxy: &CaseProxy,
    forms: &CanonicalForms,
    wanted: impl Fn(&str) -> bool,
) -> FetchedResources {
    let mut got = FetchedResources::new();
    for (name, kind) in KINDS.into_iter().filter(|(name, _)| wanted(name)) {
        let recorded = case.expected(&proxy.name, &kind);
        if recorded.is_empty() {
            continue;
        }
        let names: Vec<String> = recorded.iter().map(|r| canonical::name(r).to_owned()).collect();
        let names = if is_wildcard(&kind) || kind == TypeUrl::NAME_TABLE { &[][..] } else { &names };
        got.insert(name, answers(proxy, &kind, names).iter().map(|r| forms.of(&kind, r)).collect());
    }
    got
}

fn is_wildcard(kind: &TypeUrl) -> bool {
    [TypeUrl::CLUSTER, TypeUrl::LISTENER].contains(kind)
}

/// The EDS service name of a cluster.
fn eds_name(cluster: &Value) -> Option<String> {
    let own = cluster["eds_cluster_config"]["service_name"].as_str().filter(|n| !n.is_empty());
    let name = own.or(cluster["name"].as_str());
    name.filter(|_| cluster["type"] == "EDS").map(str::to_owned)
}

/// Names of routes and extension configs that a listener refers to.
fn references(value: &Value, wanted: &mut BTreeMap<TypeUrl, BTreeSet<String>>) {
    match value {
        Value::Object(map) => {
            if let Some(route) = value["rds"]["route_config_name"].as_str().filter(|n| !n.is_empty()) {
                wanted.entry(TypeUrl::ROUTE).or_default().insert(route.to_owned());
            }
            if map.contains_key("config_discovery") {
                let name = value["name"].as_str().unwrap_or_default();
                wanted.entry(TypeUrl::EXTENSION).or_default().insert(name.to_owned());
            }
            map.values().for_each(|v| references(v, wanted));
        }
        Value::Array(items) => items.iter().for_each(|v| references(v, wanted)),
        _ => {}
    }
}
