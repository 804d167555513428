//! Converts Gateways and ListenerSets: each listener becomes an Istio Gateway, so that routes can attach to single
//! listeners.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::istio::networking::v1alpha3::{Gateway as InternalGateway, Server};
use serde_json::{Value, json};

use super::addresses::GatewayAddresses;
use super::class::{self, ClassSupport};
use super::conditions::{ConditionFault, StatusConditions};
use super::conflicts::{self, ListenerConflicts};
use super::listener::{self, ListenerStatus};
use super::parents::{AttachableListener, internal_name};
use super::tls::{self, ListenerOwner};
use super::tracked::{TrackedSnapshot, all};
use super::{Output, PARENTS, parent_note};
use crate::config::gateway_api::{GROUP, Gateway, Listener, ListenerSet};
use crate::config::{Config, Kind, Meta, Spec};
use crate::credential_refs::BACKEND_CERTIFICATE_NOTE;
use crate::hashed::Hashed;
use crate::names::CredentialKind;

const SERVICE_NOTE: &str = "internal.istio.io/gateway-service";
const SEMANTICS_NOTE: &str = "internal.istio.io/gateway-semantics";
const ACCOUNT_NOTE: &str = "internal.istio.io/service-account-name";
/// Requests to a host of another HTTPS listener of the port are answered with 421.
const MISDIRECTED_NOTE: &str = "internal.istio.io/misdirected-requests";
const PARENT_NAMESPACE_NOTE: &str = "internal.istio.io/parent-namespace";

/// Number of attached routes by listener: kind, namespace and name of the owner, and name of the listener.
pub(super) type AttachedRoutes = BTreeMap<(Kind, String, String, String), usize>;

/// Our gateways, and the listeners that routes can attach to.
#[derive(Default)]
pub(super) struct ConvertedGateways {
    /// All listeners without conflict, including invalid ones.
    pub(super) listening: Vec<AttachableListener>,
    unfinished: Vec<PendingStatus>,
}

/// A status that still lacks the numbers of attached routes.
struct PendingStatus {
    kind: Kind,
    meta: Arc<Meta>,
    status: Value,
    listeners: Vec<ListenerStatus>,
}

/// A gateway while its listeners are converted.
struct GatewayContext<'a> {
    gateway: &'a Config<Gateway>,
    /// Hosts of the Services of its proxies.
    services: Vec<String>,
    fault: Option<ConditionFault>,
    conflicts: ListenerConflicts,
}

/// The converted listeners of one Gateway or ListenerSet.
#[derive(Default)]
struct BuiltListeners {
    statuses: Vec<ListenerStatus>,
    /// Ports of all listeners without conflict.
    ports: BTreeSet<u32>,
    valid: usize,
    listening: Vec<AttachableListener>,
}

impl ConvertedGateways {
    pub(super) fn convert(snapshot: &TrackedSnapshot<'_>, out: &mut Output) -> ConvertedGateways {
        let mut all_gateways = ConvertedGateways::default();
        let sets: Vec<Config<ListenerSet>> = all!(snapshot, ListenerSet);
        for gateway in all!(snapshot, KubernetesGateway) {
            match class::of(snapshot, &gateway.spec.gateway_class_name) {
                None => {}
                Some(ClassSupport::Remote) => {
                    out.status(Kind::KubernetesGateway, &gateway.meta, remote_status(&gateway));
                    for set in sets.iter().filter(|set| is_child(set, &gateway.meta)) {
                        let message = format!(
                            "The {:?} GatewayClass does not support ListenerSet",
                            gateway.spec.gateway_class_name
                        );
                        out.status(Kind::ListenerSet, &set.meta, refused(&set.meta, &message));
                    }
                }
                Some(ClassSupport::Served) => all_gateways.add(snapshot, out, &gateway, &sets),
            }
        }
        all_gateways
    }

    fn add(
        &mut self,
        snapshot: &TrackedSnapshot<'_>,
        out: &mut Output,
        gateway: &Config<Gateway>,
        sets: &[Config<ListenerSet>],
    ) {
        let children = sets.iter().filter(|set| is_child(set, &gateway.meta));
        let (admitted, others): (Vec<_>, Vec<_>) = children.partition(|set| admits(snapshot, gateway, &set.meta));
        for set in others {
            let message = "The parent Gateway does not allow this reference; check the 'spec.allowedRoutes'";
            out.status(Kind::ListenerSet, &set.meta, refused(&set.meta, message));
        }
        let (services, fault) = services(snapshot, gateway);
        let conflicts = ListenerConflicts::new(gateway, &admitted);
        let mut front = GatewayContext { gateway, services, fault, conflicts };
        if front.services.is_empty() && front.fault.is_some() {
            return self.add_unreachable(snapshot, &front, &admitted);
        }
        let mut sets_built = Vec::new();
        for set in admitted {
            let built = front.build(
                snapshot,
                out,
                ListenerOwner { kind: Kind::ListenerSet, meta: &set.meta },
                &set.spec.listeners,
            );
            self.report_set(snapshot, &front, set, &built);
            sets_built.push(built);
        }
        front.fault = front.fault.or_else(|| parameters_fault(snapshot, gateway));
        let owner = ListenerOwner { kind: Kind::KubernetesGateway, meta: &gateway.meta };
        let mut built = front.build(snapshot, out, owner, &gateway.spec.listeners);
        let attached = sets_built.iter().filter(|set| set.listening.iter().any(|l| l.is_valid)).count();
        for set in sets_built {
            let valid = set.listening.into_iter().filter(|l| l.is_valid);
            for listening in valid {
                built.ports.insert(u32::from(listening.port));
                built.listening.push(listening);
            }
        }
        let status = gateway_status(snapshot, &front, &built, attached);
        self.finish_later(Kind::KubernetesGateway, &gateway.meta, status, built.statuses);
        self.listening.extend(built.listening);
    }

    /// Reports a gateway without a Service.
    fn add_unreachable(
        &mut self,
        snapshot: &TrackedSnapshot<'_>,
        front: &GatewayContext<'_>,
        sets: &[&Config<ListenerSet>],
    ) {
        for set in sets {
            self.report_set(snapshot, front, set, &BuiltListeners { valid: 1, ..BuiltListeners::default() });
        }
        let built = BuiltListeners::default();
        let status = gateway_status(snapshot, front, &built, 0);
        self.finish_later(Kind::KubernetesGateway, &front.gateway.meta, status, Vec::new());
    }

    fn report_set(
        &mut self,
        snapshot: &TrackedSnapshot<'_>,
        front: &GatewayContext<'_>,
        set: &Config<ListenerSet>,
        built: &BuiltListeners,
    ) {
        let namespace = &front.gateway.meta.namespace;
        let instances = GatewayAddresses::resolve(snapshot, namespace, &front.services, &built.ports);
        let none = (built.valid == 0)
            .then(|| ConditionFault::new("ListenersNotValid", "None of the ListenerSet's listeners are valid"));
        let parent = front.fault.as_ref();
        let parent = parent.map(|f| ConditionFault::new(f.reason, format!("Parent not accepted: {}", f.message)));
        let mut conditions = StatusConditions::default();
        conditions.hold("Accepted", "Accepted", "Resource accepted");
        conditions.fail_if("Accepted", parent.or_else(|| none.clone()));
        instances.report(&front.services, &mut conditions);
        conditions.fail_if("Programmed", none);
        let status = json!({"conditions": conditions.json(set.meta.generation)});
        self.finish_later(Kind::ListenerSet, &set.meta, status, built.statuses.clone());
    }

    fn finish_later(&mut self, kind: Kind, meta: &Arc<Meta>, status: Value, listeners: Vec<ListenerStatus>) {
        self.unfinished.push(PendingStatus { kind, meta: meta.clone(), status, listeners });
    }

    /// Writes the statuses with the numbers of attached routes.
    pub(super) fn finish(self, out: &mut Output, attached: &AttachedRoutes) {
        for PendingStatus { kind, meta, mut status, listeners } in self.unfinished {
            let mut names = BTreeSet::new();
            let listeners: Vec<Value> = listeners
                .iter()
                .filter(|l| names.insert(l.name.as_str()))
                .map(|listener| {
                    let key = (kind, meta.namespace.to_string(), meta.name.to_string(), listener.name.clone());
                    listener.json(kind, meta.generation, attached.get(&key).copied().unwrap_or_default())
                })
                .collect();
            if !listeners.is_empty() {
                status["listeners"] = listeners.into();
            }
            out.status(kind, &meta, status);
        }
    }
}

impl GatewayContext<'_> {
    fn build(
        &self,
        snapshot: &TrackedSnapshot<'_>,
        out: &mut Output,
        owner: ListenerOwner<'_>,
        listeners: &[Listener],
    ) -> BuiltListeners {
        let mut built = BuiltListeners::default();
        for written in listeners {
            let (port, port_fault) = match (owner.kind, conflicts::port_of(written)) {
                (Kind::ListenerSet, Ok(port)) => (port, None),
                (Kind::ListenerSet, Err(error)) => (written.port, Some(error.to_string())),
                _ => (written.port, None),
            };
            let listener = &Listener { port, ..written.clone() };
            if let Some(reason) = self.conflicts.of(owner.kind, owner.meta, &listener.name) {
                built.statuses.push(ListenerStatus::conflicted(listener, reason));
                continue;
            }
            let validation = self.gateway.spec.tls.frontend(port);
            let one = listener::build(snapshot, owner, listener, validation, port_fault);
            built.statuses.push(one.status);
            // A listener without a server counts for a Gateway, but not for a ListenerSet, as in upstream.
            if one.is_valid && (one.server.is_some() || owner.kind == Kind::KubernetesGateway) {
                built.valid += 1;
            }
            let Some(server) = one.server else { continue };
            built.ports.insert(u32::from(port));
            built.listening.push(AttachableListener::new(owner, listener, &server, one.is_valid));
            if one.is_valid {
                self.add_gateway(snapshot, out, owner, &listener.name, server);
            }
        }
        built
    }

    fn add_gateway(
        &self,
        snapshot: &TrackedSnapshot<'_>,
        out: &mut Output,
        owner: ListenerOwner<'_>,
        listener: &str,
        server: Server,
    ) {
        let mut notes = vec![
            (PARENTS, parent_note(owner.kind, owner.meta, Some(listener))),
            (SEMANTICS_NOTE, "gateway".to_owned()),
            (SERVICE_NOTE, self.services.join(",")),
            (ACCOUNT_NOTE, self.account(snapshot)),
        ];
        // Upstream does neither.
        if snapshot.settings().knobs.deploy_gateways {
            notes.push((MISDIRECTED_NOTE, "detect".to_owned()));
            let certificate = tls::client_certificate(snapshot, &self.gateway.meta, &self.gateway.spec);
            notes.extend(certificate.and_then(Result::ok).map(|name| (BACKEND_CERTIFICATE_NOTE, name)));
        }
        if owner.kind == Kind::ListenerSet {
            notes.push((PARENT_NAMESPACE_NOTE, self.gateway.meta.namespace.to_string()));
        }
        let spec = InternalGateway { servers: vec![server], ..InternalGateway::default() };
        out.add(owner.meta, internal_name(owner.meta, listener), &notes, Spec::Gateway(Hashed::from_message(spec)));
    }

    /// The service account of the gateway's proxies; empty if the user deploys them.
    fn account(&self, snapshot: &TrackedSnapshot<'_>) -> String {
        let (meta, spec) = (&self.gateway.meta, &self.gateway.spec);
        if !class::is_managed(snapshot, spec) {
            return String::new();
        }
        class::account(meta, spec)
    }
}

pub(super) fn is_child(set: &Config<ListenerSet>, gateway: &Meta) -> bool {
    let parent = &set.spec.parent_ref;
    let namespace = parent.namespace.as_deref().unwrap_or(set.meta.namespace.as_str());
    parent.group == GROUP && parent.kind == "Gateway" && *parent.name == *gateway.name && gateway.namespace == namespace
}

/// Whether a gateway allows ListenerSets of this namespace; by default it allows none.
pub(super) fn admits(snapshot: &TrackedSnapshot<'_>, gateway: &Config<Gateway>, set: &Meta) -> bool {
    let Some(allowed) = &gateway.spec.allowed_listeners else { return false };
    match allowed.namespaces.from.as_deref() {
        Some("All") => true,
        Some("Same") => set.namespace == gateway.meta.namespace,
        Some("Selector") => {
            allowed.namespaces.selector.as_ref().is_some_and(|s| snapshot.selects_namespace(s, &set.namespace))
        }
        _ => false,
    }
}

/// Hosts of the Services of a gateway's proxies, and the fault of its addresses if any.
fn services(snapshot: &TrackedSnapshot<'_>, gateway: &Config<Gateway>) -> (Vec<String>, Option<ConditionFault>) {
    let (meta, spec) = (&gateway.meta, &gateway.spec);
    if class::is_managed(snapshot, spec) {
        return (vec![snapshot.host_of(&meta.namespace, &class::deployed_name(meta, spec))], None);
    }
    let (hosts, others): (Vec<_>, Vec<_>) = spec.addresses.iter().partition(|a| a.kind == "Hostname");
    let full = |host: &str| match host.contains('.') {
        true => host.to_owned(),
        false => snapshot.host_of(&meta.namespace, host),
    };
    let hosts = hosts.iter().map(|address| full(&address.value)).collect();
    if !others.is_empty() {
        let others: Vec<&str> = others.iter().map(|a| a.value.as_str()).collect();
        let message = format!("only Hostname is supported, ignoring [{}]", others.join(" "));
        return (hosts, Some(ConditionFault::new("UnsupportedAddress", message)));
    }
    const SERVICE_TYPE: &str = "networking.istio.io/service-type";
    let deprecated = meta.annotations.contains_key(SERVICE_TYPE).then(|| {
        let message = format!("annotation {SERVICE_TYPE} is deprecated, use Spec.Infrastructure.Routeability");
        ConditionFault::new("DeprecatedField", message)
    });
    (hosts, deprecated)
}

fn parameters_fault(snapshot: &TrackedSnapshot<'_>, gateway: &Config<Gateway>) -> Option<ConditionFault> {
    const INVALID: &str = "InvalidParameters";
    let reference = gateway.spec.infrastructure.parameters_ref.as_ref()?;
    if reference.kind != "ConfigMap" || !reference.group.is_empty() {
        let (group, kind) = (&reference.group, &reference.kind);
        let message = format!("Unsupported parametersRef group/kind {group}/{kind}, only ConfigMap is supported");
        return Some(ConditionFault::new(INVALID, message));
    }
    let namespace = &gateway.meta.namespace;
    let found = snapshot.credential(CredentialKind::ConfigMap, namespace, &reference.name).is_some();
    let message = || format!("parametersRef ConfigMap {namespace}/{} does not exist", reference.name);
    (!found).then(|| ConditionFault::new(INVALID, message()))
}

/// The status of a gateway without its listeners.
fn gateway_status(
    snapshot: &TrackedSnapshot<'_>,
    front: &GatewayContext<'_>,
    built: &BuiltListeners,
    attached_sets: usize,
) -> Value {
    let (meta, spec) = (&front.gateway.meta, &front.gateway.spec);
    let instances = GatewayAddresses::resolve(snapshot, &meta.namespace, &front.services, &built.ports);
    let mut conditions = StatusConditions::default();
    match &front.fault {
        Some(fault) => conditions.fail("Accepted", fault.clone()),
        None if built.valid >= spec.listeners.len() => conditions.hold("Accepted", "Accepted", "Resource accepted"),
        None if built.valid == 0 => {
            let message = "None of the Gateway's listeners are valid";
            conditions.fail("Accepted", ConditionFault::new("ListenersNotValid", message));
        }
        None => {
            let message = "One or more of the Gateway's listeners are invalid";
            conditions.hold("Accepted", "ListenersNotValid", message);
        }
    }
    conditions.hold("ResolvedRefs", "ResolvedRefs", "All references resolved");
    conditions.fail_if("ResolvedRefs", tls::client_certificate(snapshot, meta, spec).and_then(Result::err));
    if spec.tls.validations().any(|v| v.mode == "AllowInsecureFallback") {
        let message = "Gateway is operating in AllowInsecureFallback mode for frontend validation";
        conditions.hold("InsecureFrontendValidationMode", "ConfigurationChanged", message);
    }
    instances.report(&front.services, &mut conditions);
    let mut status = json!({"conditions": conditions.json(meta.generation)});
    if attached_sets > 0 {
        status["attachedListenerSets"] = json!(attached_sets);
    }
    let addresses = reported_addresses(meta, &instances);
    if !addresses.is_empty() {
        status["addresses"] = addresses.iter().map(|address| address_json(address)).collect();
    }
    status
}

/// External addresses, else host names of the Services, or their cluster IPs if an annotation asks for them.
fn reported_addresses(meta: &Meta, instances: &GatewayAddresses) -> Vec<String> {
    if !instances.external.is_empty() {
        return instances.external.iter().cloned().collect();
    }
    let wanted = meta.annotations.get("networking.istio.io/address-type").map_or("Hostname", |wanted| wanted);
    let mut found: Vec<String> = Vec::new();
    if wanted != "Hostname" {
        found.extend(instances.internal_addresses.iter().cloned());
    }
    if wanted != "IPAddress" {
        for host in instances.internal.iter().filter_map(|i| i.rsplit_once(':')).map(|(host, _)| host) {
            if !instances.pending.contains(host) && !found.iter().any(|f| f == host) {
                found.push(host.to_owned());
            }
        }
    }
    found
}

fn address_json(address: &str) -> Value {
    let kind = if address.parse::<std::net::IpAddr>().is_ok() { "IPAddress" } else { "Hostname" };
    json!({"type": kind, "value": address})
}

fn remote_status(gateway: &Config<Gateway>) -> Value {
    let mut conditions = StatusConditions::default();
    conditions.hold("Accepted", "Accepted", "Resource accepted");
    conditions.hold("Programmed", "Programmed", "This Gateway is remote; Istio will not program it");
    let mut status = json!({"conditions": conditions.json(gateway.meta.generation)});
    if !gateway.spec.addresses.is_empty() {
        status["addresses"] = json!(gateway.spec.addresses);
    }
    status
}

/// The status of a ListenerSet that its Gateway does not allow.
fn refused(meta: &Meta, message: &str) -> Value {
    let mut conditions = StatusConditions::default();
    conditions.fail("Accepted", ConditionFault::new("NotAllowed", message));
    conditions.fail("Programmed", ConditionFault::new("NotAllowed", message));
    json!({"conditions": conditions.json(meta.generation)})
}
