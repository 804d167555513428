//! Gateway classes: which gateways are ours, by the controller of their class.

use serde_json::json;

use super::conditions::StatusConditions;
use super::tracked::{TrackedSnapshot, all};
use super::{Output, features};
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
/// Annotation of a Gateway with the name of its Deployment and Service.
pub(super) const NAME_OVERRIDE: &str = "gateway.istio.io/name-override";
/// Annotation of a Gateway with the name of its service account.
pub(super) const ACCOUNT: &str = "gateway.istio.io/service-account";

/// How a class is supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClassSupport {
    /// Listeners and routes are served.
    Served,
    /// The gateway runs in another cluster; only its address is used.
    Remote,
}

/// Support for a class; `None` if another controller owns it. Our default classes need no GatewayClass object.
pub(super) fn of(snapshot: &TrackedSnapshot<'_>, name: &str) -> Option<ClassSupport> {
    let key = Key { kind: Kind::GatewayClass, namespace: Namespace::default(), name: name.into() };
    let written = snapshot.objects().get(&key).and_then(|object| match &object.spec {
        Spec::GatewayClass(class) => by_controller(snapshot, &class.controller_name),
        _ => None,
    });
    written.or_else(|| match name {
        REMOTE_CLASS => Some(ClassSupport::Remote),
        name if *name == *snapshot.settings().knobs.gateway_class => Some(ClassSupport::Served),
        _ => None,
    })
}

fn by_controller(snapshot: &TrackedSnapshot<'_>, controller: &str) -> Option<ClassSupport> {
    match controller {
        UNMANAGED => Some(ClassSupport::Remote),
        controller if *controller == *snapshot.settings().knobs.gateway_controller => Some(ClassSupport::Served),
        _ => None,
    }
}

/// Whether another controller owns the waypoint of a Service or ServiceEntry, by its own label or that of its namespace.
/// That controller then also handles its routes.
pub(super) fn has_foreign_waypoint(snapshot: &TrackedSnapshot<'_>, namespace: &str, labels: &Labels) -> bool {
    let labels = match labels.get(USE_WAYPOINT) {
        Some(_) => labels,
        None => match snapshot.namespace_labels(namespace) {
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
    let Some(Spec::KubernetesGateway(waypoint)) = snapshot.objects().get(&key).map(|object| &object.spec) else {
        return false;
    };
    let class = waypoint.gateway_class_name.as_str();
    let key = Key { kind: Kind::GatewayClass, namespace: Namespace::default(), name: class.into() };
    match snapshot.objects().get(&key).map(|object| &object.spec) {
        Some(Spec::GatewayClass(class)) => {
            class.controller_name != MESH_CONTROLLER
                && *class.controller_name != *snapshot.settings().knobs.gateway_controller
        }
        _ => false,
    }
}

/// Sets the status of classes of our controllers. Features are claimed where we deploy gateways: some are features of the
/// deployment, and what other gateways support is unknown.
pub(super) fn convert(snapshot: &TrackedSnapshot<'_>, out: &mut Output) {
    for class in all!(snapshot, GatewayClass) {
        let Some(support) = by_controller(snapshot, &class.spec.controller_name) else { continue };
        let mut conditions = StatusConditions::default();
        conditions.hold("Accepted", "Accepted", "Handled by Istio controller");
        let mut status = json!({"conditions": conditions.json(class.meta.generation)});
        if support == ClassSupport::Served && snapshot.settings().knobs.deploy_gateways {
            status["supportedFeatures"] = features::supported().into();
        }
        out.status(Kind::GatewayClass, &class.meta, status);
    }
}

/// Whether we name the gateway's Service, instead of its `addresses`.
pub(super) fn is_managed(snapshot: &TrackedSnapshot<'_>, gateway: &Gateway) -> bool {
    if !snapshot.settings().knobs.manual_gateways {
        return true;
    }
    match gateway.addresses.as_slice() {
        [] => true,
        [only] => only.kind == "IPAddress",
        _ => false,
    }
}

/// The name of the Service and Deployment of a managed gateway.
pub(super) fn deployed_name(meta: &Meta, gateway: &Gateway) -> String {
    given(meta, NAME_OVERRIDE).unwrap_or_else(|| default_name(meta, gateway))
}

/// The service account of a managed gateway.
pub(super) fn account(meta: &Meta, gateway: &Gateway) -> String {
    given(meta, ACCOUNT).unwrap_or_else(|| default_name(meta, gateway))
}

fn default_name(meta: &Meta, gateway: &Gateway) -> String {
    format!("{}-{}", meta.name, gateway.gateway_class_name)
}

fn given(meta: &Meta, annotation: &str) -> Option<String> {
    meta.annotations.get(annotation).filter(|name| !name.is_empty()).map(ToString::to_string)
}
