//! Services of one egress listener that have a port, indexed by host.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use model::host::is_wildcard;
use model::names::{Hostname, Namespace, Str};
use model::port::Port;
use model::service::Service;
use model::snapshot::routing::{Semantics, VirtualServiceRule};
use scope::egress::EgressListener;

/// Services with the same listener port, oldest first. The map is only for lookup, so its order does not matter.
pub(super) struct HostIndex<'a> {
    pub(super) entries: Vec<HostEntry<'a>>,
    by_host: HashMap<Cow<'a, str>, usize>,
    wildcards: Vec<usize>,
    /// Where other services are looked up, for an index of a single host.
    other_services: Option<OtherServices<'a>>,
}

struct OtherServices<'a> {
    only: &'a str,
    services: &'a [Arc<Service>],
    port: u16,
}

/// One service.
pub(super) struct HostEntry<'a> {
    pub(super) host: Cow<'a, str>,
    pub(super) service: &'a Arc<Service>,
    /// `None` for all ports.
    port: Option<&'a Port>,
}

impl<'a> HostEntry<'a> {
    /// Ports with HTTP or an unknown protocol.
    pub(super) fn http_ports(&self) -> impl Iterator<Item = &'a Port> + use<'a> {
        let all = if self.port.is_none() { &self.service.ports[..] } else { &[] };
        self.port.into_iter().chain(all).filter(|p| p.protocol.is_http() || p.protocol.is_unknown())
    }
}

/// The hosts of a VirtualService: indexes of services, and other hosts.
pub(super) struct RuleHosts {
    pub(super) services: Vec<usize>,
    pub(super) others: Vec<String>,
}

impl<'a> HostIndex<'a> {
    /// Services with this port, or all services for port 0. Of several services with one host, the last one wins.
    pub(super) fn new(services: &'a [Arc<Service>], port: u16) -> HostIndex<'a> {
        let mut host_index = HostIndex {
            entries: Vec::new(),
            by_host: HashMap::with_capacity(services.len()),
            wildcards: Vec::new(),
            other_services: None,
        };
        host_index.add_all(services.iter(), port);
        host_index
    }

    /// The services of one host. Route destinations are looked up in all services.
    pub(super) fn only(host: &'a str, services: &'a [Arc<Service>], port: u16) -> HostIndex<'a> {
        let other_services = Some(OtherServices { only: host, services, port });
        let mut host_index =
            HostIndex { entries: Vec::new(), by_host: HashMap::new(), wildcards: Vec::new(), other_services };
        host_index.add_all(services.iter().filter(|s| s.hostname.eq_ignore_ascii_case(host)), port);
        host_index
    }

    fn add_all(&mut self, services: impl Iterator<Item = &'a Arc<Service>>, port: u16) {
        for service in services {
            if port == 0 {
                self.add(Cow::Borrowed(&*service.hostname), service, None);
            } else if let Some(found) = service.port(port) {
                self.add(lower(&service.hostname), service, Some(found));
            }
        }
    }

    fn add(&mut self, host: Cow<'a, str>, service: &'a Arc<Service>, port: Option<&'a Port>) {
        let entry = HostEntry { host: host.clone(), service, port };
        if let Some(index) = self.by_host.get(&host) {
            self.entries[*index] = entry;
            return;
        }
        if is_wildcard(&host) {
            self.wildcards.push(self.entries.len());
        }
        self.by_host.insert(host, self.entries.len());
        self.entries.push(entry);
    }

    pub(super) fn get(&self, host: &str) -> Option<&'a Service> {
        if let Some(index) = self.by_host.get(host) {
            return Some(self.entries[*index].service);
        }
        let OtherServices { services, port, .. } = self.other_services.as_ref()?;
        services.iter().rfind(|s| lower(&s.hostname) == host && s.port(*port).is_some()).map(|s| &**s)
    }

    /// Whether the VirtualService has routes for this table: for its services or, if `other_hosts`, for other hosts.
    pub(super) fn wants(&self, rule: &VirtualServiceRule, other_hosts: bool) -> bool {
        let other = match &self.other_services {
            None => other_hosts,
            Some(OtherServices { only, .. }) => {
                other_hosts && rule.config.spec.hosts.iter().any(|h| h.eq_ignore_ascii_case(only))
            }
        };
        other || self.touches(rule)
    }

    /// Whether any host of the VirtualService overlaps with a service.
    fn touches(&self, rule: &VirtualServiceRule) -> bool {
        rule.config.spec.hosts.iter().any(|host| {
            let host = lower(host);
            if self.by_host.contains_key(&host) {
                return true;
            }
            let name = Hostname::from(&*host);
            if name.is_wildcard() {
                return self.entries.iter().any(|e| name.overlaps(&e.host));
            }
            self.wildcards.iter().any(|index| name.overlaps(&self.entries[*index].host))
        })
    }

    /// The hosts of a VirtualService. A wildcard host matches only services without a more specific VirtualService.
    pub(super) fn hosts_of(&self, rule: &VirtualServiceRule, listener: &EgressListener) -> RuleHosts {
        let mut hosts = RuleHosts { services: Vec::new(), others: Vec::new() };
        let (wildcards, plain): (Vec<_>, Vec<_>) = rule.config.spec.hosts.iter().partition(|h| is_wildcard(h));
        for host in plain {
            match self.by_host.get(&lower(host)) {
                Some(index) => hosts.services.push(*index),
                None => hosts.others.push(host.to_lowercase()),
            }
        }
        let own: (&Namespace, &Str) = (&rule.config.meta.namespace, &rule.config.meta.name);
        for wildcard in wildcards {
            let name = Hostname::from(wildcard.to_lowercase());
            let is_gateway = rule.semantics() == Semantics::Gateway;
            let mut covered = false;
            for (index, entry) in self.entries.iter().enumerate() {
                if is_gateway || !name.overlaps(&entry.host) {
                    continue;
                }
                covered = true;
                let winner = listener.most_specific_routes.get(&*entry.host);
                if winner.is_some_and(|(namespace, name)| (namespace, name) == own) {
                    hosts.services.push(index);
                }
            }
            if !covered {
                hosts.others.push(name.to_string());
            }
        }
        hosts
    }
}

fn lower(text: &str) -> Cow<'_, str> {
    if text.bytes().any(|b| b.is_ascii_uppercase()) { Cow::Owned(text.to_lowercase()) } else { Cow::Borrowed(text) }
}
