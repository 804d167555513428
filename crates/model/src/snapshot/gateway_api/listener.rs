//! Converts one listener to a server, and sets its status.

use api::istio::networking::v1alpha3::{Port, Server};
use serde_json::{Value, json};

use super::conditions::{ConditionFault, StatusConditions};
use super::tls::{self, ListenerOwner};
use super::tracked::TrackedSnapshot;
use crate::config::Kind;
use crate::config::gateway_api::{AllowedRoutes, ClientValidation, GROUP, Listener, RouteKind};

/// The converted listener.
pub(super) struct ListenerServer {
    /// Also set for an invalid listener, because its port still counts.
    pub(super) server: Option<Server>,
    pub(super) is_valid: bool,
    pub(super) status: ListenerStatus,
}

/// The status of one listener without the number of attached routes.
#[derive(Clone)]
pub(super) struct ListenerStatus {
    pub(super) name: String,
    supported: Vec<RouteKind>,
    conditions: StatusConditions,
}

impl ListenerStatus {
    fn new(listener: &Listener, mut conditions: StatusConditions) -> ListenerStatus {
        let (supported, all_known) = route_kinds(listener);
        if !all_known {
            conditions.fail("ResolvedRefs", ConditionFault::new("InvalidRouteKinds", "Invalid route kinds"));
        }
        ListenerStatus { name: listener.name.clone(), supported, conditions }
    }

    /// The status of a listener that conflicts with another.
    pub(super) fn conflicted(listener: &Listener, reason: &'static str) -> ListenerStatus {
        let message = "Listener has a conflict with another listener attached to the same Gateway";
        let mut conditions = StatusConditions::default();
        conditions.fail("Accepted", ConditionFault::new(reason, message));
        conditions.fail("Programmed", ConditionFault::new(reason, message));
        conditions.hold("Conflicted", reason, message);
        ListenerStatus::new(listener, conditions)
    }

    pub(super) fn json(&self, owner: Kind, generation: i64, attached_routes: usize) -> Value {
        let mut out = json!({
            "name": self.name,
            "attachedRoutes": attached_routes,
            "conditions": self.conditions.json(generation),
        });
        // Without supported kinds a Gateway reports an empty list, a ListenerSet nothing.
        if owner != Kind::ListenerSet || !self.supported.is_empty() {
            out["supportedKinds"] = json!(self.supported);
        }
        out
    }
}

/// Converts a listener of a Gateway or ListenerSet. `port_fault` is why it has no port.
pub(super) fn build(
    snapshot: &TrackedSnapshot<'_>,
    owner: ListenerOwner<'_>,
    listener: &Listener,
    validation: Option<&ClientValidation>,
    port_fault: Option<String>,
) -> ListenerServer {
    const FINE: &str = "No errors found";
    let mut conditions = StatusConditions::default();
    conditions.hold("Accepted", "Accepted", FINE);
    conditions.hold("Programmed", "Programmed", FINE);
    conditions.fail("Conflicted", ConditionFault::new("NoConflicts", FINE));
    conditions.hold("ResolvedRefs", "ResolvedRefs", FINE);

    let (tls, fault) = tls::settings(snapshot, owner, listener, validation);
    let mut is_valid = fault.is_none();
    if let Some(fault) = fault {
        if matches!(fault.reason, tls::INVALID_CA | tls::INVALID_CA_KIND | tls::NOT_PERMITTED) {
            conditions.fail("Accepted", ConditionFault::new("NoValidCACertificate", fault.message.clone()));
        }
        conditions.fail("ResolvedRefs", fault);
        conditions.fail("Programmed", ConditionFault::new("Invalid", "Bad TLS configuration"));
    }
    let unsupported = port_fault.or_else(|| protocol_fault(&listener.protocol));
    if let Some(message) = unsupported {
        conditions.fail("Accepted", ConditionFault::new("UnsupportedProtocol", message));
        is_valid = false;
    }
    let lacks_tls = tls.is_none() && matches!(listener.protocol.as_str(), "HTTPS" | "TLS");
    if lacks_tls && owner.kind == Kind::ListenerSet {
        is_valid = false;
        let message = format!("protocol is {} but no TLS section is defined", listener.protocol);
        conditions.fail("Accepted", ConditionFault::new("UnsupportedProtocol", message));
        conditions.fail("Programmed", ConditionFault::new("Invalid", "Bad TLS configuration"));
    }
    let server = (!lacks_tls).then(|| Server {
        port: Some(Port {
            name: "default".to_owned(),
            number: u32::from(listener.port),
            protocol: listener.protocol.clone(),
            ..Port::default()
        }),
        hosts: hosts(snapshot, owner, listener),
        tls,
        ..Server::default()
    });
    ListenerServer { server, is_valid, status: ListenerStatus::new(listener, conditions) }
}

/// Why a protocol cannot be served; names are case sensitive.
fn protocol_fault(protocol: &str) -> Option<String> {
    const SERVED: &[&str] = &["HTTP", "HTTPS", "TLS", "TCP"];
    if SERVED.contains(&protocol) {
        return None;
    }
    if protocol == "HBONE" {
        return Some(format!("protocol {protocol:?} is only supported for waypoint proxies"));
    }
    let upper = protocol.to_uppercase();
    if SERVED.contains(&upper.as_str()) || upper == "HBONE" {
        return Some(format!("protocol {protocol:?} is unsupported. hint: {upper:?} (uppercase) may be supported"));
    }
    Some(format!("protocol {protocol:?} is unsupported"))
}

/// Hosts of the server, one for each namespace whose routes may attach.
fn hosts(snapshot: &TrackedSnapshot<'_>, owner: ListenerOwner<'_>, listener: &Listener) -> Vec<String> {
    let host = listener.hostname.as_deref().unwrap_or("*");
    let namespaces = namespaces(snapshot, owner, &listener.allowed_routes);
    // A Gateway needs a host; this one matches no route.
    if namespaces.is_empty() {
        return vec![format!("~/{host}")];
    }
    namespaces.iter().map(|namespace| format!("{namespace}/{host}")).collect()
}

fn namespaces(snapshot: &TrackedSnapshot<'_>, owner: ListenerOwner<'_>, allowed: &AllowedRoutes) -> Vec<String> {
    match (allowed.namespaces.from.as_deref(), &allowed.namespaces.selector) {
        (None | Some("Same"), _) => vec![owner.meta.namespace.to_string()],
        (Some("All"), _) | (_, None) => vec!["*".to_owned()],
        (_, Some(selector)) => snapshot.selected_namespaces(selector).iter().map(ToString::to_string).collect(),
    }
}

/// Kinds of routes that a listener allows, and whether all listed kinds are known.
pub(super) fn route_kinds(listener: &Listener) -> (Vec<RouteKind>, bool) {
    let terminates = listener.tls.as_ref().is_some_and(|tls| tls.mode.as_deref().unwrap_or("Terminate") == "Terminate");
    let served: &[Kind] = match listener.protocol.as_str() {
        "HTTP" | "HTTPS" => &[Kind::HttpRoute, Kind::GrpcRoute],
        "TCP" => &[Kind::TcpRoute],
        "TLS" if terminates => &[Kind::TlsRoute, Kind::TcpRoute],
        "TLS" => &[Kind::TlsRoute],
        _ => &[],
    };
    let mut kinds: Vec<RouteKind> =
        served.iter().map(|kind| RouteKind { group: GROUP.to_owned(), kind: kind.as_str().to_owned() }).collect();
    let wanted = &listener.allowed_routes.kinds;
    if wanted.is_empty() {
        return (kinds, true);
    }
    kinds.retain(|kind| wanted.contains(kind));
    let all_known = kinds.len() == wanted.len();
    (kinds, all_known)
}
