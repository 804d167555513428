//! Conflicting listeners of a gateway; the first in order of precedence wins.

use std::collections::BTreeMap;

use crate::config::gateway_api::{Gateway, Listener, ListenerSet};
use crate::config::{Config, Kind, Meta};
use crate::names::{Namespace, Str};

/// The Gateway or ListenerSet of a listener.
type OwnerKey = (Kind, Namespace, Str);

/// Rejected listeners by owner and name, with the reason.
#[derive(Debug, Default)]
pub(super) struct ListenerConflicts(BTreeMap<(OwnerKey, String), &'static str>);

impl ListenerConflicts {
    /// The conflicts of a gateway and the ListenerSets that it allows.
    pub(super) fn new(gateway: &Config<Gateway>, sets: &[&Config<ListenerSet>]) -> ListenerConflicts {
        let mut sets = sets.to_vec();
        sets.sort_by_key(|set| (set.meta.created, format!("{}/{}", set.meta.namespace, set.meta.name)));
        let own = gateway.spec.listeners.iter().map(|l| (owner(Kind::KubernetesGateway, &gateway.meta), l.clone()));
        let added = sets.iter().flat_map(|set| {
            let with_port = |l: &Listener| Listener { port: port_of(l).unwrap_or(l.port), ..l.clone() };
            set.spec.listeners.iter().map(move |l| (owner(Kind::ListenerSet, &set.meta), with_port(l)))
        });
        let mut accepted: Vec<Listener> = Vec::new();
        let mut lost = BTreeMap::new();
        for (owner, listener) in own.chain(added) {
            match accepted.iter().find(|prior| !distinct(&listener, prior)) {
                Some(prior) => {
                    lost.insert((owner, listener.name.clone()), reason(&listener, prior));
                }
                None => accepted.push(listener),
            }
        }
        ListenerConflicts(lost)
    }

    /// Why this listener is rejected, if it is.
    pub(super) fn of(&self, kind: Kind, meta: &Meta, listener: &str) -> Option<&'static str> {
        self.0.get(&(owner(kind, meta), listener.to_owned())).copied()
    }
}

/// A listener without a port, whose protocol has no default port.
#[derive(Debug, thiserror::Error)]
#[error("protocol {protocol} requires a port to be set")]
pub(super) struct PortRequired {
    protocol: String,
}

/// The port of a listener, or the default of its protocol.
pub(super) fn port_of(listener: &Listener) -> Result<u16, PortRequired> {
    match (listener.port, listener.protocol.as_str()) {
        (0, "HTTP") => Ok(80),
        (0, "HTTPS") => Ok(443),
        (0, protocol) => Err(PortRequired { protocol: protocol.to_owned() }),
        (port, _) => Ok(port),
    }
}

fn owner(kind: Kind, meta: &Meta) -> OwnerKey {
    (kind, meta.namespace.clone(), meta.name.clone())
}

fn is_stream(listener: &Listener) -> bool {
    matches!(listener.protocol.as_str(), "TCP" | "UDP")
}

fn has_hosts(listener: &Listener) -> bool {
    matches!(listener.protocol.as_str(), "HTTP" | "HTTPS" | "TLS")
}

fn host(listener: &Listener) -> &str {
    listener.hostname.as_deref().filter(|h| !h.is_empty()).unwrap_or("*")
}

fn distinct(a: &Listener, b: &Listener) -> bool {
    if a.port != b.port {
        return true;
    }
    match (is_stream(a) || has_hosts(a), is_stream(b) || has_hosts(b)) {
        (true, true) if has_hosts(a) && has_hosts(b) => host(a) != host(b),
        (true, true) => false,
        _ => a.protocol != b.protocol,
    }
}

fn reason(a: &Listener, b: &Listener) -> &'static str {
    let streams = is_stream(a) && is_stream(b);
    if streams || a.protocol != b.protocol { "ProtocolConflict" } else { "HostnameConflict" }
}
