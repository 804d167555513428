//! Which EnvoyFilters hold for a client, and in which order their patches are applied.

use std::collections::BTreeSet;

use api::istio::networking::v1alpha3::EnvoyFilter;
use api::istio::networking::v1alpha3::envoy_filter::patch::Operation;
use api::istio::networking::v1alpha3::envoy_filter::{ApplyTo, PatchContext};
use model::config::patches::{Patch, PatchSet};
use model::names::{Namespace, Text};
use model::proxy::Proxy;
use model::shared::Part;
use model::snapshot::Snapshot;

use crate::select::{Selectors, attaches};

/// Patches for one client, in the order of their application.
#[derive(Clone, Debug, Default)]
pub struct Patches {
    all: Vec<Part<Patch>>,
    /// Services, as `host` or `namespace/host`, that a gateway needs for them.
    pub referenced_services: BTreeSet<Text>,
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
        Patches {
            referenced_services: services.map(Text::from).collect(),
            all: held.iter().flat_map(|set| set.for_proxy(proxy)).cloned().collect(),
        }
    }

    /// Patches of some kinds of objects in one context.
    pub fn to<'a>(&'a self, kinds: &'a [ApplyTo], context: PatchContext) -> impl Iterator<Item = &'a Part<Patch>> {
        let wanted = self.all.iter().filter(|patch| kinds.contains(&patch.apply_to));
        wanted.filter(move |patch| [context, PatchContext::Any].contains(&patch.context()))
    }

    /// Patches that add objects of one kind, whatever their context.
    pub fn adding(&self, kind: ApplyTo) -> impl Iterator<Item = &Part<Patch>> {
        self.all.iter().filter(move |patch| patch.apply_to == kind && patch.operation == Operation::Add)
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

fn holds(set: &PatchSet, root: &Namespace, proxy: &Proxy, selectors: Selectors) -> bool {
    let (spec, namespace): (&EnvoyFilter, _) = (&set.config.spec, &set.config.meta.namespace);
    let near = namespace == root || *namespace == proxy.namespace;
    near && attaches(spec, namespace, &proxy.namespace, &proxy.labels, selectors)
}
