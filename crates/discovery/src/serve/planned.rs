//! Compares what a client is served in two snapshots, resource by resource, as an Envoy would see it: it asks for the load
//! assignments of discovered clusters and for the route tables that its listeners refer to.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use api::{Resource, TypeUrl, Version};
use translate::whole::{is_discovered, route_names};
use xds::ResourceSet;

use crate::serve::clients::Watched;
use crate::serve::rendered::RenderedView;

/// A resource that differs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChangedResource {
    pub(crate) kind: TypeUrl,
    pub(crate) name: String,
    pub(crate) change: ResourceChange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ResourceChange {
    Added,
    Changed,
    Removed,
}

impl ResourceChange {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            ResourceChange::Added => "added",
            ResourceChange::Changed => "changed",
            ResourceChange::Removed => "removed",
        }
    }
}

/// Decoded once for all clients that share a resource.
#[derive(Debug, Default)]
pub(crate) struct References {
    routes: HashMap<Version, Vec<String>>,
    discovered: HashMap<Version, bool>,
}

impl References {
    fn route_names(&mut self, view: &RenderedView) -> BTreeSet<String> {
        let Some(listeners) = view.set(&TypeUrl::LISTENER) else { return BTreeSet::new() };
        let mut names = BTreeSet::new();
        for listener in listeners.resources() {
            let of_listener = self.routes.entry(listener.version).or_insert_with(|| route_names(listener));
            names.extend(of_listener.iter().cloned());
        }
        names
    }

    fn is_discovered(&mut self, view: &RenderedView, name: &str) -> bool {
        let clusters = view.set(&TypeUrl::CLUSTER);
        let Some(cluster) = clusters.as_ref().and_then(|set| set.listed(name)) else { return false };
        *self.discovered.entry(cluster.version).or_insert_with(|| is_discovered(cluster))
    }

    /// What the client subscribes to once it has this view.
    pub(crate) fn subscriptions(
        &mut self,
        view: &RenderedView,
        watched: &BTreeMap<TypeUrl, Watched>,
    ) -> BTreeMap<TypeUrl, Watched> {
        let mut after = watched.clone();
        let named = |names: Vec<String>| Watched {
            names: std::sync::Arc::new(names.into_iter().map(Into::into).collect()),
            ..Watched::default()
        };
        for kind in [TypeUrl::CLUSTER, TypeUrl::LISTENER] {
            after.entry(kind).or_default().wildcard = true;
        }
        let clusters = view.set(&TypeUrl::CLUSTER);
        let clusters = clusters.iter().flat_map(|set| set.resources().map(|cluster| cluster.name.to_string()));
        let clusters = clusters.collect::<Vec<_>>().into_iter().filter(|name| self.is_discovered(view, name));
        let clusters = clusters.collect();
        after.insert(TypeUrl::ENDPOINT, named(clusters));
        let tables = self.route_names(view).into_iter().collect();
        after.insert(TypeUrl::ROUTE, named(tables));
        after
    }
}

/// The resources that differ between two views of a client, which subscribes to these types.
pub(crate) fn changed(
    before: &RenderedView,
    after: &RenderedView,
    watched: &BTreeMap<TypeUrl, Watched>,
    references: &mut References,
) -> Vec<ChangedResource> {
    let mut found = Vec::new();
    for kind in [TypeUrl::CLUSTER, TypeUrl::LISTENER] {
        compare_listed(&kind, before, after, &mut found);
    }
    let mut assignments = Vec::new();
    compare_listed(&TypeUrl::ENDPOINT, before, after, &mut assignments);
    found.extend(assignments.into_iter().filter_map(|changed| discovered(changed, before, after, references)));
    found.extend(rediscovered(before, after, references));
    let (old, new) = (references.route_names(before), references.route_names(after));
    compare_named(&TypeUrl::ROUTE, (before, &old), (after, &new), &mut found);
    if watched.contains_key(&TypeUrl::NAME_TABLE) {
        compare_listed(&TypeUrl::NAME_TABLE, before, after, &mut found);
    }
    for kind in [TypeUrl::SECRET, TypeUrl::EXTENSION] {
        if let Some(watched) = watched.get(&kind) {
            let names = watched.names.iter().map(|name| name.to_string()).collect();
            compare_named(&kind, (before, &names), (after, &names), &mut found);
        }
    }
    found.sort();
    found.dedup();
    found
}

/// The same for a load assignment: an Envoy has it only while its cluster is discovered.
fn discovered(
    changed: ChangedResource,
    before: &RenderedView,
    after: &RenderedView,
    references: &mut References,
) -> Option<ChangedResource> {
    let was = references.is_discovered(before, &changed.name);
    let is = references.is_discovered(after, &changed.name);
    let change = match (was, is) {
        (true, true) => changed.change,
        (false, true) => ResourceChange::Added,
        (true, false) => ResourceChange::Removed,
        (false, false) => return None,
    };
    Some(ChangedResource { change, ..changed })
}

/// Load assignments that stay the same while their cluster begins or ceases to be discovered.
fn rediscovered(before: &RenderedView, after: &RenderedView, references: &mut References) -> Vec<ChangedResource> {
    let mut clusters = Vec::new();
    compare_listed(&TypeUrl::CLUSTER, before, after, &mut clusters);
    let mut found = Vec::new();
    for ChangedResource { name, .. } in clusters {
        let was = references.is_discovered(before, &name);
        let change = match (was, references.is_discovered(after, &name)) {
            (false, true) => ResourceChange::Added,
            (true, false) => ResourceChange::Removed,
            _ => continue,
        };
        found.push(ChangedResource { kind: TypeUrl::ENDPOINT, name, change });
    }
    found
}

/// Compares all resources of a type.
fn compare_listed(kind: &TypeUrl, before: &RenderedView, after: &RenderedView, found: &mut Vec<ChangedResource>) {
    let (Some(before), Some(after)) = (before.set(kind), after.set(kind)) else { return };
    let mut add = |name: &str, change| {
        found.push(ChangedResource { kind: kind.clone(), name: name.to_owned(), change });
    };
    for resource in after.resources() {
        match before.listed(&resource.name) {
            None => add(&resource.name, ResourceChange::Added),
            Some(known) if known.version != resource.version => add(&resource.name, ResourceChange::Changed),
            Some(_) => {}
        }
    }
    let is_gone = |resource: &&Resource| after.listed(&resource.name).is_none();
    before.resources().filter(is_gone).for_each(|resource| add(&resource.name, ResourceChange::Removed));
}

/// Compares the resources with these names.
fn compare_named(
    kind: &TypeUrl,
    (before, old): (&RenderedView, &BTreeSet<String>),
    (after, new): (&RenderedView, &BTreeSet<String>),
    found: &mut Vec<ChangedResource>,
) {
    let (Some(before), Some(after)) = (before.set(kind), after.set(kind)) else { return };
    let get = |set: &ResourceSet, names: &BTreeSet<String>, name: &String| {
        if names.contains(name) { set.get(name).map(|resource| resource.version) } else { None }
    };
    for name in old.union(new) {
        let change = match (get(&before, old, name), get(&after, new, name)) {
            (None, Some(_)) => ResourceChange::Added,
            (Some(_), None) => ResourceChange::Removed,
            (Some(before), Some(after)) if before != after => ResourceChange::Changed,
            _ => continue,
        };
        found.push(ChangedResource { kind: kind.clone(), name: name.clone(), change });
    }
}
