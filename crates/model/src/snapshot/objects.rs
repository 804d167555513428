//! All config objects, and the sections that are no more than the objects of some kinds in order of age.

use std::collections::{BTreeMap, HashMap};

use api::istio::extensions::v1alpha1::{TrafficExtension, WasmPlugin};
use api::istio::networking::v1alpha3::{EnvoyFilter, Gateway, Sidecar};
use api::istio::networking::v1beta1::ProxyConfig;
use api::istio::security::v1beta1::{AuthorizationPolicy, PeerAuthentication, RequestAuthentication};
use api::istio::telemetry::v1alpha1::Telemetry;

use super::plugins;
use crate::change::SourceId;
use crate::config::patches::PatchSet;
use crate::config::problem::Problem;
use crate::config::{Config, Key, Kind, Object, Spec};
use crate::names::{Namespace, Str};
use crate::settings::Knobs;

/// Every config object by key; where several stores have it, that of the first one. `stores` settles that.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    pub(super) counting: imbl::OrdMap<Key, StoredObject>,
    /// What other stores have under the same keys.
    pub(super) behind: imbl::OrdMap<(Key, SourceId), Object>,
    /// `behind` changed since the last look at it.
    pub(super) is_contested_anew: bool,
}

/// An object, and the store that told it, if one did.
#[derive(Clone, Debug)]
pub(super) struct StoredObject {
    pub(super) object: Object,
    pub(super) by: Option<SourceId>,
}

impl Objects {
    pub fn get(&self, key: &Key) -> Option<&Object> {
        self.counting.get(key).map(|told| &told.object)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Object)> {
        self.counting.iter().map(|(key, told)| (key, &told.object))
    }

    /// Objects of one kind, by namespace and name.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &Object> + use<'_> {
        let first = Key { kind, namespace: Namespace::default(), name: Str::from("") };
        self.counting.range(first..).map(|(_, told)| &told.object).take_while(move |o| o.spec.kind() == kind)
    }

    /// Objects of one kind in one namespace, by name.
    pub fn of_namespace<'a>(&'a self, kind: Kind, namespace: &'a Namespace) -> impl Iterator<Item = &'a Object> {
        let first = Key { kind, namespace: namespace.clone(), name: Str::from("") };
        let objects = self.counting.range(first..).map(|(_, told)| &told.object);
        objects.take_while(move |o| o.spec.kind() == kind && o.meta.namespace == *namespace)
    }

    pub fn len(&self) -> usize {
        self.counting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.counting.is_empty()
    }

    /// Puts an object there whoever else has it. Gives the one that was there.
    pub(super) fn insert(&mut self, object: Object) -> Option<Object> {
        self.counting.insert(object.key(), StoredObject { object, by: None }).map(|told| told.object)
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Object> {
        self.counting.remove(key).map(|told| told.object)
    }
}

/// Objects that users wrote, and those that foreign ones were converted to.
pub(super) struct AllObjects<'a> {
    pub(super) written: &'a Objects,
    pub(super) converted: &'a Objects,
}

impl<'a> AllObjects<'a> {
    /// Objects of one kind.
    pub(super) fn of(&self, kind: Kind) -> impl Iterator<Item = &'a Object> + use<'a> {
        self.written.of(kind).chain(self.converted.of(kind))
    }
}

macro_rules! by_age {
    ($objects:expr, $kind:ident) => {{
        let mut found: Vec<_> = $objects
            .of(Kind::$kind)
            .filter_map(|object| match &object.spec {
                Spec::$kind(spec) => Some(Config { meta: object.meta.clone(), spec: spec.clone() }),
                _ => None,
            })
            .collect();
        sort_by_age(&mut found);
        found
    }};
}
pub(super) use by_age;

/// Oldest first; names decide between objects of the same second.
pub(super) fn sort_by_age<T>(configs: &mut [Config<T>]) {
    configs.sort_by(|a, b| {
        let key = |c: &Config<T>| (c.meta.created, c.meta.name.clone(), c.meta.namespace.clone());
        key(a).cmp(&key(b))
    });
}

/// Who may talk to whom.
#[derive(Clone, Debug, Default)]
pub struct SecurityPolicies {
    pub peer_authentications: Vec<Config<PeerAuthentication>>,
    pub request_authentications: Vec<Config<RequestAuthentication>>,
    pub authorization_policies: Vec<Config<AuthorizationPolicy>>,
    peers_by_namespace: BTreeMap<Namespace, Vec<Config<PeerAuthentication>>>,
}

impl SecurityPolicies {
    pub(super) fn build(objects: &AllObjects<'_>) -> SecurityPolicies {
        SecurityPolicies {
            request_authentications: by_age!(objects, RequestAuthentication),
            authorization_policies: by_age!(objects, AuthorizationPolicy),
            ..SecurityPolicies::of_peers(by_age!(objects, PeerAuthentication))
        }
    }

    /// Only PeerAuthentications, oldest first.
    pub fn of_peers(peer_authentications: Vec<Config<PeerAuthentication>>) -> SecurityPolicies {
        let mut peers_by_namespace: BTreeMap<Namespace, Vec<_>> = BTreeMap::new();
        for config in &peer_authentications {
            peers_by_namespace.entry(config.meta.namespace.clone()).or_default().push(config.clone());
        }
        SecurityPolicies { peer_authentications, peers_by_namespace, ..SecurityPolicies::default() }
    }

    /// PeerAuthentications of one namespace, oldest first.
    pub fn peer_authentications_in(&self, namespace: &str) -> &[Config<PeerAuthentication>] {
        self.peers_by_namespace.get(namespace).map_or(&[], |list| list)
    }
}

/// Gateways, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Gateways {
    pub gateways: Vec<Config<Gateway>>,
}

impl Gateways {
    pub(super) fn build(objects: &AllObjects<'_>) -> Gateways {
        Gateways { gateways: by_age!(objects, Gateway) }
    }
}

/// Sidecar resources, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Sidecars {
    pub sidecars: Vec<Config<Sidecar>>,
}

impl Sidecars {
    pub(super) fn build(objects: &Objects) -> Sidecars {
        Sidecars { sidecars: by_age!(objects, Sidecar) }
    }
}

/// What changes or adds to generated config: filters, plugins, telemetry.
#[derive(Clone, Debug, Default)]
pub struct Extensions {
    pub envoy_filters: Vec<PatchSet>,
    /// WasmPlugins among them.
    pub traffic_extensions: Vec<Config<TrafficExtension>>,
    pub telemetries: Vec<Config<Telemetry>>,
    pub proxy_configs: Vec<Config<ProxyConfig>>,
    /// What is said of patches that are left out.
    pub(super) problems: Vec<Problem>,
}

impl Extensions {
    pub(super) fn build(objects: &Objects, before: &Extensions, knobs: &Knobs) -> Extensions {
        let plugins: Vec<Config<WasmPlugin>> = by_age!(objects, WasmPlugin);
        let mut traffic_extensions: Vec<Config<TrafficExtension>> = by_age!(objects, TrafficExtension);
        traffic_extensions.extend(plugins.iter().map(plugins::extension));
        sort_by_age(&mut traffic_extensions);
        let filters: Vec<Config<EnvoyFilter>> = by_age!(objects, EnvoyFilter);
        let known: HashMap<u128, &PatchSet> =
            before.envoy_filters.iter().map(|set| (set.config.spec.fingerprint(), set)).collect();
        let patches = |filter: Config<EnvoyFilter>| {
            let before = known.get(&filter.spec.fingerprint()).copied();
            PatchSet::new(filter, before, knobs)
        };
        let envoy_filters: Vec<PatchSet> = filters.into_iter().map(patches).collect();
        Extensions {
            problems: envoy_filters.iter().flat_map(|filter| filter.problems(knobs)).collect(),
            envoy_filters,
            traffic_extensions,
            telemetries: by_age!(objects, Telemetry),
            proxy_configs: by_age!(objects, ProxyConfig),
        }
    }
}
