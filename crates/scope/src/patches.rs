//! The EnvoyFilters that apply to a client, and the order in which their patches are applied.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::istio::networking::v1alpha3::EnvoyFilter;
use api::istio::networking::v1alpha3::envoy_filter::ApplyTo;
use api::istio::networking::v1alpha3::envoy_filter::patch::Operation;
use model::config::Meta;
use model::config::patches::{Patch, PatchSet};
use model::hashed::{Hashed, fingerprint};
use model::names::{Namespace, Str};
use model::proxy::Proxy;
use model::snapshot::Snapshot;

use crate::select::{Selectors, attaches};

/// Patches for one client, in the order of their application.
#[derive(Clone, Debug, Default)]
pub struct Patches {
    all: Vec<HeldPatch>,
    /// Services, as `host` or `namespace/host`, that a gateway needs for these patches.
    pub referenced_services: BTreeSet<Str>,
    fingerprint: u128,
}

/// A patch and its EnvoyFilter.
#[derive(Clone, Debug)]
pub struct HeldPatch {
    pub patch: Hashed<Patch>,
    pub filter: Arc<Meta>,
}

impl Patches {
    /// The patches of this proxy: by priority, the root namespace's first, then by age and name.
    pub fn new(world: &Snapshot, proxy: &Proxy) -> Patches {
        let root = world.settings.root_namespace();
        let selectors = Selectors::of(&world.settings.knobs);
        let held = world.extensions.envoy_filters.iter().filter(|set| holds(set, &root, proxy, selectors));
        let mut held: Vec<&PatchSet> = held.collect();
        held.sort_by_cached_key(|set| {
            let (meta, spec) = (&set.config.meta, &set.config.spec);
            (spec.priority, meta.namespace != root, meta.created, format!("{}.{}", meta.name, meta.namespace))
        });
        let services = held.iter().flat_map(|set| set.referenced_services());
        let referenced_services = services.map(Str::from).collect();
        let all: Vec<HeldPatch> = held.iter().flat_map(|set| held_patches(set, proxy)).collect();
        let patches: Vec<_> = all.iter().map(|held| (&held.patch, &held.filter)).collect();
        let fingerprint = fingerprint(&(&referenced_services, patches));
        Patches { all, referenced_services, fingerprint }
    }

    /// Patches that apply to these kinds of objects.
    pub fn to<'a>(&'a self, kinds: &'a [ApplyTo]) -> impl Iterator<Item = &'a HeldPatch> {
        self.all.iter().filter(|held| kinds.contains(&held.patch.apply_to))
    }

    /// Patches that add objects of one kind, in any context.
    pub fn adding(&self, kind: ApplyTo) -> impl Iterator<Item = &Hashed<Patch>> {
        let patches = self.all.iter().map(|held| &held.patch);
        patches.filter(move |patch| patch.apply_to == kind && patch.operation == Operation::Add)
    }

    /// Equal for clients that have the same patches.
    pub fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

fn held_patches<'a>(set: &'a PatchSet, proxy: &'a Proxy) -> impl Iterator<Item = HeldPatch> + use<'a> {
    let filter = &set.config.meta;
    set.for_proxy(proxy).map(move |patch| HeldPatch { patch: patch.clone(), filter: filter.clone() })
}

fn holds(set: &PatchSet, root: &Namespace, proxy: &Proxy, selectors: Selectors) -> bool {
    let (spec, namespace): (&EnvoyFilter, _) = (&set.config.spec, &set.config.meta.namespace);
    let near = namespace == root || *namespace == proxy.namespace;
    near && attaches(spec, namespace, &proxy.namespace, &proxy.labels, selectors)
}
