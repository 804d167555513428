//! Asks a server for everything that an Envoy with this node would ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use api::{Resource, TypeUrl};
use serde_json::Value;

use super::{KINDS, Proxy};
use crate::canonical;

/// The server under test, loaded with one case: what it answers a proxy that subscribes to
/// these names of a type. No names means all there are.
pub type Answers = Box<dyn Fn(&Proxy, &TypeUrl, &[String]) -> Vec<Resource>>;

/// Canonical forms by type and content: most resources are the same in many cases.
#[derive(Default)]
pub(super) struct Forms(Mutex<BTreeMap<(TypeUrl, api::Version), Arc<Value>>>);

impl Forms {
    pub(super) fn of(&self, kind: &TypeUrl, resource: &Resource) -> Arc<Value> {
        let key = (kind.clone(), resource.version);
        if let Some(known) = self.lock().get(&key) {
            return Arc::clone(known);
        }
        let form = Arc::new(canonical::json(kind.as_str(), &resource.body));
        self.lock().insert(key, Arc::clone(&form));
        form
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<(TypeUrl, api::Version), Arc<Value>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Every answer in canonical form, by type.
pub(super) fn ask(answers: &Answers, proxy: &Proxy, forms: &Forms) -> BTreeMap<&'static str, Vec<Arc<Value>>> {
    let fetch = |kind: &TypeUrl, names: &[String]| -> Vec<Arc<Value>> {
        answers(proxy, kind, names).iter().map(|r| forms.of(kind, r)).collect()
    };
    let mut got: BTreeMap<&'static str, Vec<Arc<Value>>> = BTreeMap::new();
    let mut wanted: BTreeMap<TypeUrl, BTreeSet<String>> = BTreeMap::new();
    for (name, kind) in KINDS {
        let names: Vec<String> = wanted.remove(&kind).unwrap_or_default().into_iter().collect();
        let wildcard = [TypeUrl::CLUSTER, TypeUrl::LISTENER].contains(&kind)
            || (kind == TypeUrl::NAME_TABLE && proxy.wants_names());
        if !wildcard && names.is_empty() {
            continue;
        }
        let resources = fetch(&kind, &names);
        if kind == TypeUrl::CLUSTER {
            wanted.entry(TypeUrl::ENDPOINT).or_default().extend(resources.iter().filter_map(|c| eds_name(c)));
        } else if kind == TypeUrl::LISTENER {
            resources.iter().for_each(|listener| references(listener, &mut wanted));
        }
        got.insert(name, resources);
    }
    got
}

/// The name under which an EDS cluster's endpoints are asked for.
fn eds_name(cluster: &Value) -> Option<String> {
    let own = cluster["eds_cluster_config"]["service_name"].as_str().filter(|n| !n.is_empty());
    let name = own.or(cluster["name"].as_str());
    name.filter(|_| cluster["type"] == "EDS").map(str::to_owned)
}

/// The routes and extension configs that a listener takes from elsewhere.
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
