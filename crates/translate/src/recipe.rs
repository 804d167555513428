//! The entry of this crate: every resource that a client can be sent, as a recipe. A recipe is planned and patched, but
//! not rendered: a cache can look it up by its fingerprint first. The server and the recorded cases both use it.

use api::{Resource, TypeUrl};
use model::hashed::fingerprint;
use model::names::Str;
use model::problem::Problem;
use scope::View;

use crate::client::{self, sidecar};
use crate::extension::WasmPlan;
use crate::names::{OutboundCluster, parse_outbound_cluster};
use crate::patch::{self, PatchList, PatchedPlan};
use crate::plan::cluster::{ClusterKind, ClusterPlan};
use crate::plan::endpoints::{self, EndpointsPlan};
use crate::plan::listener::{self, Direction, ListenerPlan};
use crate::plan::names::NameTablePlan;
use crate::plan::route::RoutePlan;
use crate::plan::secret::{self, SecretPlan};
use crate::render;

/// One resource, ready to be rendered.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub name: Str,
    /// Hash of everything the rendering depends on. `None` for secrets, which must not be cached.
    pub fingerprint: Option<u128>,
    plan: ResourcePlan,
}

#[derive(Clone, Debug)]
enum ResourcePlan {
    Cluster(PatchedPlan<ClusterPlan>),
    Endpoints(EndpointsPlan),
    Listener(Box<PatchedPlan<ListenerPlan>>),
    Route(PatchedPlan<RoutePlan>),
    Extension(PatchedPlan<WasmPlan>),
    NameTable(NameTablePlan),
    Secret(SecretPlan),
}

/// All resources of a type, in the order in which they are sent. Empty for types that are only served by name (RDS,
/// SDS). Reports EnvoyFilters that exceed a limit.
pub fn recipes(view: &View, kind: &TypeUrl, problems: &mut Vec<Problem>) -> Vec<Recipe> {
    match kind {
        k if *k == TypeUrl::CLUSTER => client::clusters(view, problems).into_iter().map(Recipe::cluster).collect(),
        k if *k == TypeUrl::LISTENER => client::listeners(view, problems).into_iter().map(Recipe::listener).collect(),
        k if *k == TypeUrl::ENDPOINT => {
            let clusters = recipes(view, &TypeUrl::CLUSTER, problems);
            clusters.iter().filter_map(|cluster| Some(endpoints(view, &cluster.outbound_cluster()?))).collect()
        }
        k if *k == TypeUrl::EXTENSION => client::extension_plans(view).into_iter().map(Recipe::extension).collect(),
        k if *k == TypeUrl::NAME_TABLE => vec![Recipe::name_table(sidecar::name_table(view))],
        _ => Vec::new(),
    }
}

/// The clusters or listeners of one direction, for a sidecar without patches. Both directions together are all of them;
/// of two with one name the outbound one counts. Few clients share inbound resources, and many the outbound ones.
pub fn unpatched(view: &View, kind: &TypeUrl, direction: Direction) -> Vec<Recipe> {
    let patches = PatchList::new(Vec::new());
    let cluster = |plan| Recipe::cluster(PatchedPlan::Planned { plan, patches: patches.clone() });
    let listener = |plan| Recipe::listener(PatchedPlan::Planned { plan, patches: patches.clone() });
    match (kind, direction) {
        (k, Direction::Outbound) if *k == TypeUrl::CLUSTER => {
            sidecar::outbound_clusters(view).into_iter().map(cluster).collect()
        }
        (k, Direction::Inbound) if *k == TypeUrl::CLUSTER => {
            sidecar::inbound_clusters(view).into_iter().map(cluster).collect()
        }
        (k, direction) if *k == TypeUrl::LISTENER => {
            listener::of_direction(view, direction).into_iter().map(listener).collect()
        }
        _ => Vec::new(),
    }
}

/// The resource of this type and name; `None` if the client has none. Every route table exists, if only as an empty one.
pub fn recipe(view: &View, kind: &TypeUrl, name: &str, problems: &mut Vec<Problem>) -> Option<Recipe> {
    match kind {
        k if *k == TypeUrl::ENDPOINT => Some(endpoints(view, &parse_outbound_cluster(name)?)),
        k if *k == TypeUrl::ROUTE => client::route(view, name, problems).map(Recipe::route_table),
        k if *k == TypeUrl::SECRET => secret::secret(view, name).map(Recipe::secret),
        _ => recipes(view, kind, problems).into_iter().find(|recipe| *recipe.name == *name),
    }
}

/// The load assignment of a cluster. It has no endpoints if the client does not see the service.
pub fn endpoints(view: &View, cluster: &OutboundCluster) -> Recipe {
    let plan = endpoints::discovered(view, cluster);
    Recipe { name: plan.name.clone(), fingerprint: Some(fingerprint(&plan)), plan: ResourcePlan::Endpoints(plan) }
}

impl Recipe {
    /// The encoded resource.
    pub fn render(&self) -> Resource {
        match &self.plan {
            ResourcePlan::Cluster(plan) => patch::cluster::resource(plan),
            ResourcePlan::Endpoints(plan) => Resource::new(plan.name.clone(), &render::endpoints::endpoints(plan)),
            ResourcePlan::Listener(plan) => patch::listener::resource(plan),
            ResourcePlan::Route(plan) => patch::route::resource(plan, render::route::resource),
            ResourcePlan::Extension(plan) => patch::extension::resource(plan),
            ResourcePlan::NameTable(plan) => Resource::new(self.name.clone(), &render::names::name_table(plan)),
            ResourcePlan::Secret(plan) => Resource::new(self.name.clone(), &render::secret::secret(plan)),
        }
    }

    /// The outbound cluster, if this is one: the key of its load assignment.
    pub fn outbound_cluster(&self) -> Option<OutboundCluster> {
        match &self.plan {
            ResourcePlan::Cluster(PatchedPlan::Planned { plan, .. }) => match &plan.kind {
                ClusterKind::Outbound(outbound) => Some(outbound.id.clone()),
                _ => None,
            },
            // A patch names its cluster as it likes.
            ResourcePlan::Cluster(PatchedPlan::Added { name, .. }) => parse_outbound_cluster(name),
            _ => None,
        }
    }

    /// Whether part of another service was left out of it: a filter chain with the same match, or a cluster of the same
    /// name.
    pub fn has_conflict(&self) -> bool {
        match &self.plan {
            ResourcePlan::Cluster(PatchedPlan::Planned { plan, .. }) => plan.has_duplicate,
            ResourcePlan::Listener(plan) => {
                matches!(&**plan, PatchedPlan::Planned { plan, .. } if plan.has_conflict)
            }
            _ => false,
        }
    }

    /// The plan, if this is a route table. Its virtual hosts have fingerprints too, so that a cache can hold
    /// pieces of the table (`render::route::piece`).
    pub fn route_plan(&self) -> Option<&PatchedPlan<RoutePlan>> {
        if let ResourcePlan::Route(plan) = &self.plan { Some(plan) } else { None }
    }

    fn cluster(plan: PatchedPlan<ClusterPlan>) -> Recipe {
        let name = plan.name(|plan| &plan.name);
        Recipe { name, fingerprint: Some(fingerprint(&plan)), plan: ResourcePlan::Cluster(plan) }
    }

    fn listener(plan: PatchedPlan<ListenerPlan>) -> Recipe {
        let name = plan.name(|plan| &plan.name);
        Recipe { name, fingerprint: Some(fingerprint(&plan)), plan: ResourcePlan::Listener(Box::new(plan)) }
    }

    fn route_table(plan: PatchedPlan<RoutePlan>) -> Recipe {
        let name = plan.name(|plan| &plan.name);
        Recipe { name, fingerprint: Some(fingerprint(&plan)), plan: ResourcePlan::Route(plan) }
    }

    fn extension(plan: PatchedPlan<WasmPlan>) -> Recipe {
        let name = plan.name(|plan| &plan.resource);
        Recipe { name, fingerprint: Some(fingerprint(&plan)), plan: ResourcePlan::Extension(plan) }
    }

    /// There is one table, without a name.
    fn name_table(plan: NameTablePlan) -> Recipe {
        Recipe { name: Str::default(), fingerprint: Some(fingerprint(&plan)), plan: ResourcePlan::NameTable(plan) }
    }

    fn secret(plan: SecretPlan) -> Recipe {
        Recipe { name: plan.name.clone(), fingerprint: None, plan: ResourcePlan::Secret(plan) }
    }
}
