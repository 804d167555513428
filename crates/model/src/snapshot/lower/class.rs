//! Which gateways are ours: classes by the controller that they name.

use serde_json::json;

use super::Output;
use super::conditions::Conditions;
use super::world::{World, all};
use crate::config::gateway_api::Gateway;
use crate::config::{Key, Kind, Meta, Spec};
use crate::names::Namespace;

const UNMANAGED: &str = "istio.io/unmanaged-gateway";
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
