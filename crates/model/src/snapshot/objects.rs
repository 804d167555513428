//! All config objects, and the sections that are only objects of some kinds, ordered by age.

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

/// All config objects. If several stores have a key, the one of the first store is used; see `stores`.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    pub(super) used: imbl::OrdMap<Key, StoredObject>,
    /// Objects of other stores with the same keys.
    pub(super) shadowed: imbl::OrdMap<(Key, SourceId), Object>,
    /// `shadowed` changed since the last call of `contested`.
    pub(super) contested_changed: bool,
}

/// An object and its store; objects without a store were set by `Snapshot::with`.
#[derive(Clone, Debug)]
pub(super) struct StoredObject {
    pub(super) object: Object,
    pub(super) by: Option<SourceId>,
}

impl Objects {
    pub fn get(&self, key: &Key) -> Option<&Object> {
        self.used.get(key).map(|stored| &stored.object)
    }

    /// The store that an object comes from.
    pub fn store(&self, key: &Key) -> Option<&SourceId> {
        self.used.get(key)?.by.as_ref()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Object)> {
        self.used.iter().map(|(key, stored)| (key, &stored.object))
    }

    /// Objects of one kind, by namespace and name.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &Object> + use<'_> {
        let first = Key { kind, namespace: Namespace::default(), name: Str::from("") };
        self.used.range(first..).map(|(_, stored)| &stored.object).take_while(move |o| o.spec.kind() == kind)
    }

    /// Objects of one kind in one namespace, by name.
    pub fn of_namespace<'a>(&'a self, kind: Kind, namespace: &'a Namespace) -> impl Iterator<Item = &'a Object> {
        let first = Key { kind, namespace: namespace.clone(), name: Str::from("") };
        let objects = self.used.range(first..).map(|(_, stored)| &stored.object);
        objects.take_while(move |o| o.spec.kind() == kind && o.meta.namespace == *namespace)
    }

    pub fn len(&self) -> usize {
        self.used.len()
    }

    pub fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    /// Sets an object, whatever store has it. Returns the previous one.
    pub(super) fn insert(&mut self, object: Object) -> Option<Object> {
        self.used.insert(object.key(), StoredObject { object, by: None }).map(|stored| stored.object)
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Object> {
        self.used.remove(key).map(|stored| stored.object)
    }
}

/// Objects of users and converted objects.
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

/// Sorts by age, oldest first, then by name and namespace.
pub(super) fn sort_by_age<T>(configs: &mut [Config<T>]) {
    configs.sort_by(|a, b| {
        let key = |c: &Config<T>| (c.meta.created, c.meta.name.clone(), c.meta.namespace.clone());
        key(a).cmp(&key(b))
    });
}

/// Authentication and authorization policies, oldest first.
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

    /// Policies from a list of PeerAuthentications, oldest first.
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

/// Objects that extend the generated config: filters, plugins, telemetry.
#[derive(Clone, Debug, Default)]
pub struct Extensions {
    pub envoy_filters: Vec<PatchSet>,
    /// Includes WasmPlugins, converted.
    pub traffic_extensions: Vec<Config<TrafficExtension>>,
    pub telemetries: Vec<Config<Telemetry>>,
    pub proxy_configs: Vec<Config<ProxyConfig>>,
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
