//! Converts the Gateway API: routes become VirtualServices of their parents. HTTP routes of the same listener and host are
//! joined into one VirtualService.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::istio::networking::v1alpha3::{HttpMatchRequest, HttpRoute as Route, VirtualService};

use super::backends::Referrer;
use super::conversion::{Ancestors, RouteConversion};
use super::gateways::{AttachedRoutes, ConvertedGateways};
use super::parents::{AttachableListener, Attachment, Parent, attachments};
use super::route_status::{self, RouteFaults};
use super::tracked::{TrackedSnapshot, all};
use super::{
    KUBERNETES_GATEWAY, Output, PARENTS, ROUTE_SEMANTICS, class, http, matches, parent_note, policies, stream,
};
use crate::config::gateway_api::{BackendRef, GROUP, ParentReference, StreamRoute};
use crate::config::{Config, Kind, Meta, Spec};
use crate::hashed::Hashed;

pub(super) fn convert(snapshot: &TrackedSnapshot<'_>, out: &mut Output) {
    class::convert(snapshot, out);
    let gateways = ConvertedGateways::convert(snapshot, out);
    let mut converter = RouteConverter {
        snapshot,
        listening: &gateways.listening,
        http: BTreeMap::new(),
        attached: BTreeSet::new(),
        ancestors: Ancestors::new(),
    };
    converter.http_routes(out);
    converter.grpc_routes(out);
    for route in all!(snapshot, TcpRoute) {
        converter.tcp_route(out, &route);
    }
    for route in all!(snapshot, TlsRoute) {
        converter.tls_route(out, &route);
    }
    let RouteConverter { http, attached, ancestors, .. } = converter;
    http.into_iter().for_each(|(key, parts)| join(out, &key, parts));
    policies::convert(snapshot, out, &ancestors);
    let mut counts = AttachedRoutes::new();
    for (_, listener) in attached {
        *counts.entry(listener).or_default() += 1;
    }
    gateways.finish(out, &counts);
}

/// The routes of an HTTPRoute or GRPCRoute for one parent and host.
struct HostRoutes {
    kind: Kind,
    meta: Arc<Meta>,
    /// The name of the VirtualService if it were alone; orders parts of the same age.
    name: String,
    gateway: String,
    host: String,
    routes: Arc<Vec<Route>>,
}

/// Kind, namespace and name of a route.
type RouteKey = (Kind, String, String);
type ListenerKey = (Kind, String, String, String);

struct RouteConverter<'a> {
    snapshot: &'a TrackedSnapshot<'a>,
    listening: &'a [AttachableListener],
    http: BTreeMap<String, Vec<HostRoutes>>,
    attached: BTreeSet<(RouteKey, ListenerKey)>,
    ancestors: Ancestors,
}

/// A route being converted.
struct BoundRoute<'a, R> {
    attachments: Vec<Attachment<'a>>,
    mesh: RouteConversion<R>,
    gateway: RouteConversion<R>,
}

impl<'a, R> BoundRoute<'a, R> {
    /// Allowed attachments, in the order of the names of generated objects.
    fn admitted(&self) -> Vec<&Attachment<'a>> {
        let mut admitted: Vec<_> = self.attachments.iter().filter(|a| a.denied.is_none()).collect();
        admitted.sort_by(|a, b| a.internal().cmp(b.internal()));
        admitted
    }

    fn routes(&self, attachment: &Attachment<'_>) -> &[R] {
        if attachment.is_mesh() { &self.mesh.routes } else { &self.gateway.routes }
    }
}

impl<'a> RouteConverter<'a> {
    fn http_routes(&mut self, out: &mut Output) {
        for route in all!(self.snapshot, HttpRoute) {
            let spec = route.spec.as_arc().clone();
            let backends = spec.rules.iter().flat_map(|rule| &rule.backend_refs);
            self.note_ancestors(&route.meta, &spec.parent_refs, backends);
            let convert = |referrer: Referrer<'_>| http::http_rules(referrer, &spec.rules);
            let bound = self.bind(out, Kind::HttpRoute, &route.meta, &spec.parent_refs, &spec.hostnames, convert);
            let parts = self.parts(Kind::HttpRoute, &route.meta, &spec.hostnames, &bound);
            self.add_parts(parts);
        }
    }

    fn grpc_routes(&mut self, out: &mut Output) {
        for route in all!(self.snapshot, GrpcRoute) {
            let spec = route.spec.as_arc().clone();
            let backends = spec.rules.iter().flat_map(|rule| &rule.backend_refs);
            self.note_ancestors(&route.meta, &spec.parent_refs, backends);
            let convert = |referrer: Referrer<'_>| http::grpc_rules(referrer, &spec.rules);
            let bound = self.bind(out, Kind::GrpcRoute, &route.meta, &spec.parent_refs, &spec.hostnames, convert);
            let parts = self.parts(Kind::GrpcRoute, &route.meta, &spec.hostnames, &bound);
            self.add_parts(parts);
        }
    }

    fn tcp_route(&mut self, out: &mut Output, route: &Config<StreamRoute>) {
        let (meta, spec) = (&route.meta, &route.spec);
        self.note_ancestors(meta, &spec.parent_refs, spec.rules.iter().flat_map(|rule| &rule.backend_refs));
        let convert = |referrer: Referrer<'_>| stream::tcp_rules(referrer, &spec.rules);
        let bound = self.bind(out, Kind::TcpRoute, meta, &spec.parent_refs, &[], convert);
        let mut count = 0;
        for parent in bound.admitted() {
            let mut routes = bound.routes(parent).to_vec();
            if let Some(port) = parent.reference.port.filter(|_| parent.is_mesh()) {
                routes = stream::tcp_on_port(&routes, port);
            }
            let hosts = self.mesh_hosts(parent, meta).unwrap_or_else(|| vec!["*".to_owned()]);
            for host in hosts {
                let name = format!("{}~tcp~{count}~{KUBERNETES_GATEWAY}", meta.name);
                let spec = VirtualService { tcp: routes.clone(), ..service(parent, host) };
                add(out, Kind::TcpRoute, meta, name, spec);
                count += 1;
            }
        }
    }

    fn tls_route(&mut self, out: &mut Output, route: &Config<StreamRoute>) {
        let (meta, spec) = (&route.meta, &route.spec);
        self.note_ancestors(meta, &spec.parent_refs, spec.rules.iter().flat_map(|rule| &rule.backend_refs));
        let convert = |referrer: Referrer<'_>| stream::tls_rules(referrer, spec);
        let bound = self.bind(out, Kind::TlsRoute, meta, &spec.parent_refs, &spec.hostnames, convert);
        let mut count = 0;
        for parent in bound.admitted() {
            let mut routes = bound.routes(parent).to_vec();
            let mut hosts = stream::or_every(&spec.hostnames);
            if let Some(own) = self.mesh_hosts(parent, meta) {
                routes = stream::tls_in_mesh(&routes, parent.reference.port, &own);
                hosts = own;
            } else if !parent.hostname().is_empty() {
                hosts = stream::within(&hosts, parent.hostname());
                routes = stream::tls_within(&routes, parent.hostname());
            }
            for host in hosts {
                let name = format!("{}~tls~{count}~{KUBERNETES_GATEWAY}", meta.name);
                let tls = if parent.is_mesh() { stream::tls_for_host(&routes, &host) } else { routes.clone() };
                let spec = VirtualService { tls, ..service(parent, host) };
                add(out, Kind::TlsRoute, meta, name, spec);
                count += 1;
            }
        }
    }

    /// Attaches a route to its parents, converts its rules and sets its status.
    fn bind<'r, R>(
        &mut self,
        out: &mut Output,
        kind: Kind,
        meta: &Meta,
        references: &'r [ParentReference],
        hostnames: &[String],
        convert: impl Fn(Referrer<'_>) -> RouteConversion<R>,
    ) -> BoundRoute<'r, R>
    where
        'a: 'r,
    {
        let snapshot = self.snapshot;
        let attachments = attachments(snapshot, self.listening, kind, meta, references, hostnames);
        let converted = |is_mesh: bool| match attachments.iter().any(|a| a.is_mesh() == is_mesh) {
            true => convert(Referrer { snapshot, kind, meta, is_mesh }),
            false => RouteConversion::none(),
        };
        let (mesh, gateway) = (converted(true), converted(false));
        let faults = RouteFaults { mesh: mesh.fault.as_ref(), gateway: gateway.fault.as_ref() };
        out.status(kind, meta, route_status::status(snapshot, meta, &attachments, &faults));
        let route = || (kind, meta.namespace.to_string(), meta.name.to_string());
        for attachment in attachments.iter().filter(|a| a.denied.is_none()) {
            if let Parent::Listener(l) = attachment.parent {
                let listener = (l.owner, l.namespace.clone(), l.name.clone(), l.section.clone());
                self.attached.insert((route(), listener));
            }
        }
        BoundRoute { attachments, mesh, gateway }
    }

    /// The routes of an HTTPRoute or GRPCRoute by parent and host; equal keys are joined.
    fn parts(
        &self,
        kind: Kind,
        meta: &Arc<Meta>,
        hostnames: &[String],
        bound: &BoundRoute<'_, Route>,
    ) -> Vec<(String, HostRoutes)> {
        let mut parts = Vec::new();
        for parent in bound.admitted() {
            let mut key = parent.internal().to_owned();
            let mut routes = bound.routes(parent).to_vec();
            if parent.is_mesh() {
                key = meta.namespace.to_string();
                if let Some(port) = parent.reference.port {
                    routes.iter_mut().for_each(|route| on_port(route, port));
                    key = format!("{key}/{port}");
                }
            }
            if routes.is_empty() {
                continue;
            }
            matches::sort(&mut routes);
            let routes = Arc::new(routes);
            let hosts = self.mesh_hosts(parent, meta).unwrap_or_else(|| stream::or_every(hostnames));
            for host in hosts.into_iter().filter(|host| parent.serves(host)) {
                let part = HostRoutes {
                    kind,
                    meta: meta.clone(),
                    name: format!("{}~{}~{KUBERNETES_GATEWAY}", meta.name, parts.len()),
                    gateway: parent.internal().to_owned(),
                    routes: routes.clone(),
                    host: host.clone(),
                };
                parts.push((format!("{key}/{host}"), part));
            }
        }
        parts
    }

    fn add_parts(&mut self, parts: Vec<(String, HostRoutes)>) {
        for (key, part) in parts {
            self.http.entry(key).or_default().push(part);
        }
    }

    /// Hosts of the parent Service or ServiceEntry; `None` for a listener.
    fn mesh_hosts(&self, parent: &Attachment<'_>, meta: &Meta) -> Option<Vec<String>> {
        let reference = parent.reference;
        let namespace = reference.namespace.as_deref().unwrap_or(meta.namespace.as_str());
        match parent.parent {
            Parent::Listener(_) => None,
            Parent::Service => Some(vec![self.snapshot.host_of(namespace, &reference.name)]),
            Parent::Entry => {
                let entry = self.snapshot.service_entry(namespace, &reference.name);
                Some(entry.map(|entry| entry.hosts).unwrap_or_default())
            }
        }
    }

    fn note_ancestors<'b>(
        &mut self,
        meta: &Meta,
        references: &[ParentReference],
        backends: impl Iterator<Item = &'b BackendRef>,
    ) {
        let own = meta.namespace.as_str();
        let gateways: Vec<(String, String)> = references
            .iter()
            .filter(|r| r.group == GROUP && r.kind == "Gateway")
            .map(|r| (r.namespace.as_deref().unwrap_or(own).to_owned(), r.name.clone()))
            .collect();
        if gateways.is_empty() {
            return;
        }
        for backend in backends.filter(|b| b.group.is_empty() || b.kind != "Hostname") {
            let namespace = backend.namespace.as_deref().unwrap_or(own).to_owned();
            let key = (backend.kind.clone(), namespace, backend.name.clone());
            self.ancestors.entry(key).or_default().extend(gateways.iter().cloned());
        }
    }
}

/// A VirtualService of one host for one parent.
fn service(parent: &Attachment<'_>, host: String) -> VirtualService {
    VirtualService { hosts: vec![host], gateways: vec![parent.internal().to_owned()], ..VirtualService::default() }
}

fn add(out: &mut Output, kind: Kind, meta: &Meta, name: String, spec: VirtualService) {
    let notes = [(PARENTS, parent_note(kind, meta, None)), (ROUTE_SEMANTICS, "gateway".to_owned())];
    out.add(meta, name, &notes, Spec::VirtualService(Hashed::from_message(spec)));
}

/// Joins the parts of one key. The VirtualService has the namespace and age of the oldest.
fn join(out: &mut Output, key: &str, mut parts: Vec<HostRoutes>) {
    let age = |part: &HostRoutes| (part.meta.created, part.meta.namespace.clone(), part.name.clone());
    parts.sort_by_cached_key(age);
    let mut routes: Vec<Route> = parts.iter().flat_map(|part| part.routes.iter().cloned()).collect();
    if parts.len() > 1 {
        matches::sort(&mut routes);
    }
    let sources: Vec<String> = parts.iter().map(|part| parent_note(part.kind, &part.meta, None)).collect();
    let Some(first) = parts.into_iter().next() else { return };
    let spec = VirtualService {
        hosts: vec![first.host],
        gateways: vec![first.gateway],
        http: routes,
        ..VirtualService::default()
    };
    let notes = [(PARENTS, sources.join(",")), (ROUTE_SEMANTICS, "gateway".to_owned())];
    out.add(&first.meta, key.replace('/', "~"), &notes, Spec::VirtualService(Hashed::from_message(spec)));
}

/// Limits a route to one port of its Service.
fn on_port(route: &mut Route, port: u16) {
    if route.r#match.is_empty() {
        route.r#match.push(HttpMatchRequest::default());
    }
    route.r#match.iter_mut().for_each(|matching| matching.port = u32::from(port));
}
