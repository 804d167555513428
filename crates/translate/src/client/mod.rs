//! Who asks: each kind of client turns its View into plans.

pub mod gateway;
pub mod sidecar;

use model::proxy::ProxyKind;
use scope::View;

use crate::plan::cluster::ClusterPlan;
use crate::plan::listener::{self, ListenerPlan};
use crate::plan::route::RoutePlan;

/// All clusters of this client, by name.
pub fn clusters(view: &View) -> Vec<ClusterPlan> {
    match view.proxy.kind {
        ProxyKind::Router => gateway::clusters(view),
        _ => sidecar::clusters(view),
    }
}

/// All listeners of this client.
pub fn listeners(view: &View) -> Vec<ListenerPlan> {
    match view.proxy.kind {
        ProxyKind::Router => listener::gateway(view),
        _ => sidecar::listeners(view),
    }
}

/// The route table of this name, for whatever kind of client asks.
pub fn route(view: &View, name: &str) -> Option<RoutePlan> {
    match view.proxy.kind {
        ProxyKind::Router => gateway::route(view, name),
        _ => sidecar::route(view, name),
    }
}
