//! Layers: parts of the resources that clients are served, each computed once for all clients with the same inputs.
//!
//! A sidecar without EnvoyFilters is served outbound clusters and listeners, which it shares with nearly all others,
//! and its own inbound ones. Load assignments belong to the clusters of a layer; route tables are computed by name.

pub(crate) mod endpoints;
pub(crate) mod memo;

use std::collections::BTreeSet;
use std::sync::Arc;

use api::{Resource, TypeUrl};
use model::hashed::Hashed;
use model::names::Str;
use model::problem::Problem;
use model::snapshot::Snapshot;
use scope::View;
use scope::outbound::OutboundScopes;
use scope::reads::Reads;
use translate::names::OutboundCluster;
use translate::plan::listener::Direction;
use translate::{Recipe, recipes, unpatched};
use xds::Layer;

use crate::serve::bounded::Bounded;
use crate::serve::excess;
use crate::serve::renderings::Renderings;
use crate::serve::tables;
use endpoints::EndpointLayer;
use memo::{Entry, LayerRequest, Memo};

/// The content of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All resources of a type.
    Whole,
    /// The resources of one direction, for sidecars without patches.
    Towards(Direction),
}

/// All layers that clients use, and the caches they are computed from.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    pub(crate) renderings: Arc<Renderings>,
    pub(crate) scopes: OutboundScopes,
    resources: Memo<ResourceLayer>,
    endpoints: Memo<EndpointLayer>,
    routes: Memo<RouteTable>,
}

/// All or some resources of one type.
#[derive(Debug)]
pub(crate) struct ResourceLayer {
    pub(crate) layer: Arc<Layer>,
    /// The outbound clusters among the resources.
    pub(crate) clusters: Hashed<Vec<OutboundCluster>>,
    pub(crate) bytes: usize,
    pub(crate) problems: Arc<[Problem]>,
    kind: TypeUrl,
    /// Resources from which a part of another service was left out.
    conflicts: Vec<Str>,
}

/// One route table; `None` if the client has none of that name.
#[derive(Debug)]
pub(crate) struct RouteTable {
    pub(crate) table: Option<Resource>,
    pub(crate) problems: Vec<Problem>,
}

impl Layers {
    pub(crate) fn resources(&self, request: LayerRequest<'_>, kind: &TypeUrl, part: Part) -> Arc<Entry<ResourceLayer>> {
        let name = resources_name(kind, part);
        self.resources.get(request, &name, |view, _| ResourceLayer::new(view, kind, part, &self.renderings))
    }

    /// The load assignments for the clusters of a layer in the requested snapshot.
    pub(crate) fn endpoints(
        &self,
        request: LayerRequest<'_>,
        clusters: &Hashed<Vec<OutboundCluster>>,
    ) -> (Arc<Entry<EndpointLayer>>, endpoints::ServedEndpoints) {
        let name = format!("{:x}", clusters.fingerprint());
        let compute = |view: &View, reads: &Reads| {
            EndpointLayer::new(request.published.number, (view, reads), clusters, &self.renderings)
        };
        let entry = self.endpoints.get(request, &name, compute);
        if let Some(served) = entry.value.at(request, &self.renderings) {
            return (entry, served);
        }
        let entry = self.endpoints.renew(request, &name, compute);
        // A layer that was just computed for this snapshot has its assignments.
        match entry.value.at(request, &self.renderings) {
            Some(served) => (entry, served),
            None => (entry, endpoints::ServedEndpoints::default()),
        }
    }

    pub(crate) fn route(&self, request: LayerRequest<'_>, name: &str) -> Arc<Entry<RouteTable>> {
        self.routes.get(request, name, |view, _| RouteTable::new(view, name, &self.renderings))
    }

    /// Drops layers that no client uses, and encoded bodies that are no longer being sent.
    pub(crate) fn free_unused(&self, world: &Snapshot) {
        self.resources.free_unused();
        self.endpoints.free_unused();
        self.routes.free_unused();
        self.scopes.retain_newest(world);
        self.resources.for_each(|made| made.layer.free_encoded());
        self.endpoints.for_each(EndpointLayer::free_encoded);
    }

    /// Names of resources of a type from which a part of another service was left out.
    pub(crate) fn conflicts(&self, kind: &TypeUrl) -> BTreeSet<Str> {
        let mut found = BTreeSet::new();
        self.resources.for_each(|made| {
            if made.kind == *kind {
                found.extend(made.conflicts.iter().cloned());
            }
        });
        found
    }

    /// Number of layers of resources, of load assignments, and of route tables.
    pub(crate) fn len(&self) -> [usize; 3] {
        [self.resources.len(), self.endpoints.len(), self.routes.len()]
    }
}

fn resources_name(kind: &TypeUrl, part: Part) -> String {
    format!("{}/{part:?}", kind.short())
}

impl ResourceLayer {
    pub(crate) fn new(view: &View, kind: &TypeUrl, part: Part, renderings: &Renderings) -> ResourceLayer {
        let mut problems = Vec::new();
        let recipes = match part {
            Part::Whole => recipes(view, kind, &mut problems),
            Part::Towards(direction) => unpatched(view, kind, direction),
        };
        let knobs = &view.settings.knobs;
        let mut bounded = Bounded::new(knobs.resource_bytes as usize, knobs.push_bytes as usize);
        for recipe in &recipes {
            // Resources that are likely not to be sent are not cached.
            let resource = if bounded.is_exceeded() { recipe.render() } else { renderings.rendered(recipe) };
            bounded.add_resource(resource);
        }
        let (kept, left_out) = bounded.finish();
        if !left_out.is_empty() {
            problems.extend(excess::left_out(kind, &view.proxy.namespace, &left_out, knobs));
        }
        let bytes = kept.iter().map(|(_, resource)| resource.body.len()).sum();
        let layer = Layer::new(kept.into_iter().map(|(_, resource)| resource));
        // Clusters that are left out have no load assignments.
        let clusters = recipes.iter().filter(|recipe| layer.get(&recipe.name).is_some());
        let clusters = Hashed::new(clusters.filter_map(Recipe::outbound_cluster).collect());
        let conflicts =
            recipes.iter().filter(|recipe| recipe.has_conflict()).map(|recipe| recipe.name.clone()).collect();
        let (layer, problems) = (Arc::new(layer), problems.into());
        ResourceLayer { layer, clusters, bytes, problems, kind: kind.clone(), conflicts }
    }
}

impl RouteTable {
    pub(crate) fn new(view: &View, name: &str, renderings: &Renderings) -> RouteTable {
        let mut problems = Vec::new();
        let table = tables::route_table(view, name, renderings, &mut problems);
        RouteTable { table, problems }
    }
}

#[cfg(test)]
mod instructions;
#[cfg(test)]
mod tests;
