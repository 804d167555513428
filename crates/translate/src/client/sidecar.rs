//! What a sidecar is sent: which clusters, listeners, routes and endpoints its View asks for.

use scope::View;

use crate::plan::cluster::ClusterPlan;
use crate::plan::endpoints::EndpointsPlan;
use crate::plan::listener::ListenerPlan;
use crate::plan::names::{self, NameTablePlan};
use crate::plan::route::RoutePlan;
use crate::plan::route::sidecar::RouteTables;

/// All clusters, by name.
pub fn clusters(_view: &View) -> Vec<ClusterPlan> {
    Vec::new()
}

/// The endpoints of an EDS cluster; `None` for a name that is not an outbound cluster.
pub fn endpoints(_view: &View, _cluster: &str) -> Option<EndpointsPlan> {
    None
}

/// All listeners, in upstream's order.
pub fn listeners(_view: &View) -> Vec<ListenerPlan> {
    Vec::new()
}

/// The route table of this name; a sidecar gets one for every name. Whoever wants several of them asks
/// `routes`, which shares their work.
pub fn route(view: &View, name: &str) -> Option<RoutePlan> {
    Some(RouteTables::new(view).table(name))
}

/// The route tables of these names, in their order.
pub fn routes<'a>(view: &View, names: impl IntoIterator<Item = &'a str>) -> Vec<RoutePlan> {
    let mut tables = RouteTables::new(view);
    names.into_iter().map(|name| tables.table(name)).collect()
}

/// The DNS name table.
pub fn name_table(view: &View) -> NameTablePlan {
    names::name_table(view)
}
