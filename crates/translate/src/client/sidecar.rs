//! The clusters, listeners, route tables and endpoints of a sidecar.

use std::sync::Arc;

use scope::View;

use crate::names::{ClusterForm, parse_outbound_cluster};
use crate::plan::cluster::{self, ClusterPlan, inbound, outbound};
use crate::plan::endpoints::{self, EndpointsPlan};
use crate::plan::listener::{self, ListenerPlan};
use crate::plan::names::{self, NameTablePlan};
use crate::plan::route::RoutePlan;
use crate::plan::route::sidecar::RouteTables;

/// All clusters, sorted by name.
pub fn clusters(view: &View) -> Vec<ClusterPlan> {
    let mut found = outbound_clusters(view);
    found.extend(inbound_clusters(view));
    cluster::by_name(found)
}

/// Clusters of services, and those that every sidecar has.
pub(crate) fn outbound_clusters(view: &View) -> Vec<ClusterPlan> {
    let context = Arc::new(cluster::ClusterContext::new(view));
    let mut found = outbound::plans(view, &context, view.services(), ClusterForm::Plain);
    found.extend(cluster::sidecar_fixed(view, &context));
    found
}

/// Clusters of the workload itself.
pub(crate) fn inbound_clusters(view: &View) -> Vec<ClusterPlan> {
    inbound::plans(view, &Arc::new(cluster::ClusterContext::new(view)))
}

/// Endpoints of an outbound cluster; `None` for other names.
pub fn endpoints(view: &View, cluster: &str) -> Option<EndpointsPlan> {
    Some(endpoints::discovered(view, &parse_outbound_cluster(cluster)?))
}

/// All listeners, in upstream's order.
pub fn listeners(view: &View) -> Vec<ListenerPlan> {
    listener::sidecar(view)
}

/// The route table of this name; empty for an unknown name.
pub fn route(view: &View, name: &str) -> Option<RoutePlan> {
    Some(RouteTables::new(view).table(name))
}

/// The DNS name table.
pub fn name_table(view: &View) -> NameTablePlan {
    names::name_table(view)
}
