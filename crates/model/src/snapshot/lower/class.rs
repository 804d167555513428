//! Which gateways are ours: classes by the controller that they name.

use serde_json::json;

use super::Output;
use super::conditions::Conditions;
use super::world::{World, all};
use crate::config::gateway_api::Gateway;
use crate::config::{Key, Kind, Meta, Spec};
use crate::labels::Labels;
use crate::names::Namespace;

const UNMANAGED: &str = "istio.io/unmanaged-gateway";
/// The controller of waypoints.
const MESH_CONTROLLER: &str = "istio.io/mesh-controller";
const USE_WAYPOINT: &str = "istio.io/use-waypoint";
const USE_WAYPOINT_NAMESPACE: &str = "istio.io/use-waypoint-namespace";
const REMOTE_CLASS: &str = "istio-remote";

/// What we do for a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Routes and listeners.
    Served,
    /// Nothing: the gateway stands in another cluster, and only its address counts.
    Remote,
}

/// The class of a gateway; `None` if it is another controller's. Our own classes need no object.
pub(super) fn of(world: &World<'_>, name: &str) -> Option<Class> {
    let key = Key { kind: Kind::GatewayClass, namespace: Namespace::default(), name: name.into() };
    let written = world.objects().get(&key).and_then(|object| match &object.spec {
        Spec::GatewayClass(class) => by_controller(world, &class.controller_name),
        _ => None,
    });
    written.or_else(|| match name {
        REMOTE_CLASS => Some(Class::Remote),
        name if *name == *world.settings().knobs.gateway_class => Some(Class::Served),
        _ => None,
    })
}

fn by_controller(world: &World<'_>, controller: &str) -> Option<Class> {
    match controller {
        UNMANAGED => Some(Class::Remote),
        controller if *controller == *world.settings().knobs.gateway_controller => Some(Class::Served),
        _ => None,
    }
}

/// Whether the waypoint that a Service or ServiceEntry uses, by its label or its namespace's, is another controller's.
/// Routes for it are that controller's too.
pub(super) fn has_foreign_waypoint(world: &World<'_>, namespace: &str, labels: &Labels) -> bool {
    let labels = match labels.get(USE_WAYPOINT) {
        Some(_) => labels,
        None => match world.namespace_labels(namespace) {
            Some(labels) => labels,
            None => return false,
        },
    };
    let name = labels.get(USE_WAYPOINT).map(|name| &**name).unwrap_or_default();
    if name.is_empty() || name.eq_ignore_ascii_case("none") {
        return false;
    }
    let place = labels.get(USE_WAYPOINT_NAMESPACE).map(|place| &**place).filter(|place| !place.is_empty());
    let key = Key { kind: Kind::KubernetesGateway, namespace: place.unwrap_or(namespace).into(), name: name.into() };
    let Some(Spec::KubernetesGateway(waypoint)) = world.objects().get(&key).map(|object| &object.spec) else {
        return false;
    };
    let class = waypoint.gateway_class_name.as_str();
    let key = Key { kind: Kind::GatewayClass, namespace: Namespace::default(), name: class.into() };
    match world.objects().get(&key).map(|object| &object.spec) {
        Some(Spec::GatewayClass(class)) => {
            class.controller_name != MESH_CONTROLLER
                && *class.controller_name != *world.settings().knobs.gateway_controller
        }
        _ => false,
    }
}

/// States that classes of our controllers are served.
pub(super) fn lower(world: &World<'_>, out: &mut Output) {
    for class in all!(world, GatewayClass) {
        if by_controller(world, &class.spec.controller_name).is_some() {
            let mut conditions = Conditions::default();
            conditions.hold("Accepted", "Accepted", "Handled by Istio controller");
            let status = json!({"conditions": conditions.json(class.meta.generation)});
            out.status(Kind::GatewayClass, &class.meta, status);
        }
    }
}

/// Whether the gateway's Service is ours to name, and not one that its addresses name.
pub(super) fn is_managed(world: &World<'_>, gateway: &Gateway) -> bool {
    if !world.settings().knobs.manual_gateways {
        return true;
    }
    match gateway.addresses.as_slice() {
        [] => true,
        [only] => only.kind == "IPAddress",
        _ => false,
    }
}

/// The name of the Service, Deployment and account of a managed gateway.
pub(super) fn default_name(meta: &Meta, gateway: &Gateway) -> String {
    format!("{}-{}", meta.name, gateway.gateway_class_name)
}
