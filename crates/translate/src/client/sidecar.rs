//! What a sidecar is sent: which clusters, listeners, routes and endpoints its View asks for.

use scope::View;

use crate::plan::cluster::ClusterPlan;
use crate::plan::endpoints::EndpointsPlan;
use crate::plan::listener::ListenerPlan;
use crate::plan::names::NameTablePlan;
use crate::plan::route::RoutePlan;

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

/// The route table of this name; `None` where this client has no use for it.
pub fn route(_view: &View, _name: &str) -> Option<RoutePlan> {
    None
}

/// The DNS name table.
pub fn name_table(_view: &View) -> NameTablePlan {
    NameTablePlan { name: "".into() }
}
