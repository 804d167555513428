//! Parents of routes: listeners, and Services for calls within the mesh.

use std::collections::BTreeSet;

use api::istio::networking::v1alpha3::Server;

use super::KUBERNETES_GATEWAY;
use super::class::has_foreign_waypoint;
use super::tls::ListenerOwner;
use super::tracked::TrackedSnapshot;
use crate::config::gateway_api::{GROUP, Listener, ParentReference, RouteKind};
use crate::config::{Kind, Meta};
use crate::host::is_wildcard;
use crate::names::Hostname;

/// A listener that routes can attach to.
pub(super) struct AttachableListener {
    pub(super) owner: Kind,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) section: String,
    pub(super) port: u16,
    protocol: String,
    /// As written; empty matches all hosts.
    hostname: String,
    /// `namespace/host` entries of its server.
    hosts: Vec<String>,
    kinds: Vec<RouteKind>,
    /// `namespace/name` of its Istio Gateway.
    internal: String,
    pub(super) is_valid: bool,
}

impl AttachableListener {
    pub(super) fn new(
        owner: ListenerOwner<'_>,
        listener: &Listener,
        server: &Server,
        is_valid: bool,
    ) -> AttachableListener {
        AttachableListener {
            owner: owner.kind,
            namespace: owner.meta.namespace.to_string(),
            name: owner.meta.name.to_string(),
            section: listener.name.clone(),
            port: listener.port,
            protocol: listener.protocol.clone(),
            hostname: listener.hostname.clone().unwrap_or_default(),
            hosts: server.hosts.clone(),
            kinds: super::listener::route_kinds(listener).0,
            internal: format!("{}/{}", owner.meta.namespace, internal_name(owner.meta, &listener.name)),
            is_valid,
        }
    }
}

/// Why a route may not attach, the nearest miss first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AttachmentDenial {
    NotAllowed,
    NoHostname,
    NotAccepted,
}

impl AttachmentDenial {
    pub(super) fn reason(self) -> &'static str {
        match self {
            AttachmentDenial::NotAllowed => "NotAllowedByListeners",
            AttachmentDenial::NoHostname => "NoMatchingListenerHostname",
            AttachmentDenial::NotAccepted => "NoMatchingParent",
        }
    }
}

/// A parent reference of a route, resolved to one parent. A reference may resolve to several.
pub(super) struct Attachment<'a> {
    /// The index of the reference.
    pub(super) index: usize,
    pub(super) reference: &'a ParentReference,
    pub(super) parent: Parent<'a>,
    pub(super) denied: Option<(AttachmentDenial, String)>,
    /// Hosts of other listeners on the same port, which may be more specific.
    others: BTreeSet<&'a str>,
}

/// A resolved parent.
#[derive(Clone, Copy)]
pub(super) enum Parent<'a> {
    Listener(&'a AttachableListener),
    /// A Service that sidecars call.
    Service,
    /// A ServiceEntry that sidecars call.
    Entry,
}

impl Attachment<'_> {
    pub(super) fn is_mesh(&self) -> bool {
        matches!(self.parent, Parent::Service | Parent::Entry)
    }

    /// The Istio Gateway that the route is bound to, or `mesh`.
    pub(super) fn internal(&self) -> &str {
        match self.parent {
            Parent::Listener(listening) => &listening.internal,
            Parent::Service | Parent::Entry => "mesh",
        }
    }

    /// The host of the listener; empty matches all hosts.
    pub(super) fn hostname(&self) -> &str {
        match self.parent {
            Parent::Listener(listening) => &listening.hostname,
            Parent::Service | Parent::Entry => "",
        }
    }

    /// Whether no other listener on the port matches this host more specifically.
    pub(super) fn serves(&self, host: &str) -> bool {
        let (host, ours) = (Hostname::from(host), self.hostname());
        if !ours.is_empty() && !is_wildcard(ours) {
            return true;
        }
        if !ours.is_empty() && !host.overlaps(ours) {
            return false;
        }
        !self.others.iter().any(|other| ours.len() <= other.len() && host.is_subset_of(other))
    }
}

/// The resolved parents of a route, in the order of statuses and generated names.
pub(super) fn attachments<'a>(
    snapshot: &TrackedSnapshot<'_>,
    listening: &'a [AttachableListener],
    kind: Kind,
    meta: &Meta,
    references: &'a [ParentReference],
    hostnames: &[String],
) -> Vec<Attachment<'a>> {
    let mut found = Vec::new();
    for (index, reference) in references.iter().enumerate() {
        let namespace = reference.namespace.as_deref().unwrap_or(meta.namespace.as_str());
        let owner = match (reference.group.as_str(), reference.kind.as_str()) {
            (GROUP, "Gateway") => Kind::KubernetesGateway,
            (GROUP, "ListenerSet") => Kind::ListenerSet,
            ("", "Service") => {
                let labels = snapshot.service(namespace, &reference.name).map(|service| &service.labels);
                if labels.is_none_or(|labels| !has_foreign_waypoint(snapshot, namespace, labels)) {
                    found.push(mesh(index, reference, Parent::Service, labels.is_none().then_some("service")));
                }
                continue;
            }
            ("networking.istio.io", "ServiceEntry") => {
                let labels = snapshot.entry_labels(namespace, &reference.name);
                if labels.is_none_or(|labels| !has_foreign_waypoint(snapshot, namespace, labels)) {
                    found.push(mesh(index, reference, Parent::Entry, labels.is_none().then_some("service entry")));
                }
                continue;
            }
            // Possibly another controller's.
            _ => continue,
        };
        let siblings: Vec<&AttachableListener> = listening
            .iter()
            .filter(|l| l.owner == owner && l.namespace == namespace && l.name == reference.name)
            .collect();
        for ours in &siblings {
            let others = siblings.iter().filter(|l| l.port == ours.port && l.protocol == ours.protocol);
            let others = others.map(|l| l.hostname.as_str()).filter(|h| *h != ours.hostname);
            found.push(Attachment {
                index,
                reference,
                parent: Parent::Listener(ours),
                denied: denied(ours, reference, kind, &meta.namespace, hostnames),
                others: others.collect(),
            });
        }
    }
    found.sort_by_cached_key(|a| sort_key(a.reference, &meta.namespace));
    found
}

fn mesh<'a>(index: usize, reference: &'a ParentReference, parent: Parent<'a>, missing: Option<&str>) -> Attachment<'a> {
    let denied =
        missing.map(|what| (AttachmentDenial::NotAccepted, format!("parent {what}: {:?} not found", reference.name)));
    Attachment { index, reference, parent, denied, others: BTreeSet::new() }
}

/// Why a route may not attach to this listener; `None` if it may.
fn denied(
    listening: &AttachableListener,
    reference: &ParentReference,
    kind: Kind,
    namespace: &str,
    hostnames: &[String],
) -> Option<(AttachmentDenial, String)> {
    if let Some(port) = reference.port.filter(|port| *port != 0 && *port != listening.port) {
        return Some((AttachmentDenial::NotAccepted, format!("port {port} not found")));
    }
    if let Some(section) = reference.section_name.as_ref().filter(|s| !s.is_empty() && **s != listening.section) {
        return Some((AttachmentDenial::NotAccepted, format!("sectionName {section:?} not found")));
    }
    if let Some(denied) = host_denied(listening, namespace, hostnames) {
        return Some(denied);
    }
    let allowed = listening.kinds.iter().any(|k| k.group == GROUP && k.kind == kind.as_str());
    (!allowed).then(|| (AttachmentDenial::NotAllowed, format!("kind {GROUP}/v1/{kind} is not allowed")))
}

/// One matching host name is enough; the others are left out later.
fn host_denied(
    listening: &AttachableListener,
    namespace: &str,
    hostnames: &[String],
) -> Option<(AttachmentDenial, String)> {
    if listening.hosts.is_empty() {
        return None;
    }
    let every = ["*".to_owned()];
    let hostnames = if hostnames.is_empty() { &every } else { hostnames };
    let mut fits = false;
    for host in hostnames {
        for ours in &listening.hosts {
            let (owner, ours) = ours.split_once('/').unwrap_or(("*", ours));
            if Hostname::from(ours).overlaps(host) {
                fits = true;
                if owner == "*" || owner == namespace {
                    return None;
                }
            }
        }
    }
    let hostname = &listening.hostname;
    Some(if fits {
        let message = format!(
            "hostnames matched parent hostname {hostname:?}, but namespace {namespace:?} is not allowed by the parent"
        );
        (AttachmentDenial::NotAllowed, message)
    } else {
        (AttachmentDenial::NoHostname, format!("no hostnames matched parent hostname {hostname:?}"))
    })
}

/// The name of the Istio Gateway of a listener.
pub(super) fn internal_name(owner: &Meta, listener: &str) -> String {
    format!("{}~{KUBERNETES_GATEWAY}~{listener}", owner.name)
}

/// Upstream's sort key of references.
pub(super) fn sort_key(reference: &ParentReference, namespace: &str) -> String {
    format!(
        "{}/{}/{}/{}/{}.{}",
        reference.group,
        reference.kind,
        reference.name,
        reference.section_name.as_deref().unwrap_or_default(),
        reference.port.unwrap_or_default(),
        reference.namespace.as_deref().unwrap_or(namespace)
    )
}
