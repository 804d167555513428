//! Builds the virtual hosts of a sidecar's route table from groups of hosts; each domain occurs once.

use std::borrow::Cow;
use std::collections::HashSet;

use model::hashed::Hashed;
use model::names::Str;
use scope::View;
use scope::addresses::{address, addresses};

use super::domains::{self, Domains, HostSpelling, with_port};
use super::host_index::{HostEntry, HostIndex};
use super::{RouteEntry, VirtualHostPlan, destination};

/// The default HTTP port: Host headers may omit it, and only on it are there routes for hosts of no service.
pub(super) const HTTP_PORT: u16 = 80;

/// Hosts of one port that share their routes.
pub(super) struct HostGroup {
    pub(super) port: u16,
    /// Services, as indexes into the host index.
    pub(super) services: Vec<usize>,
    /// Hosts of no service.
    pub(super) others: Vec<String>,
    pub(super) routes: Hashed<Vec<RouteEntry>>,
}

/// Builds virtual hosts. A domain belongs to the first virtual host that has it.
pub(super) struct VirtualHostBuilder<'a> {
    view: &'a View,
    attempt_count: bool,
    host_index: &'a HostIndex<'a>,
    port: u16,
    names: HashSet<Str>,
    domains: HashSet<Str>,
    /// Hosts of services; they take precedence over equal short names of other services.
    full_names: HashSet<Cow<'a, str>>,
}

impl<'a> VirtualHostBuilder<'a> {
    pub(super) fn new(
        view: &'a View,
        attempt_count: bool,
        host_index: &'a HostIndex<'a>,
        port: u16,
        groups: &[HostGroup],
    ) -> VirtualHostBuilder<'a> {
        let services =
            groups.iter().flat_map(|g| g.services.iter().map(|index| (&*host_index.entries[*index].host, g.port)));
        let mut full_names = HashSet::with_capacity(groups.len());
        for (host, own_port) in services {
            full_names.insert(Cow::Borrowed(host));
            if port == 0 {
                full_names.insert(Cow::Owned(with_port(host, own_port)));
            }
        }
        VirtualHostBuilder {
            view,
            attempt_count,
            host_index,
            port,
            names: HashSet::with_capacity(groups.len()),
            domains: HashSet::with_capacity(groups.len() * 6),
            full_names,
        }
    }

    pub(super) fn virtual_hosts(mut self, groups: &[HostGroup]) -> Vec<Hashed<VirtualHostPlan>> {
        let mut out = Vec::with_capacity(groups.len());
        for group in groups {
            for host in &group.others {
                let domains = Domains { all: vec![domains::bracketed(host)], short: Vec::new() };
                out.extend(self.virtual_host(group, host, domains, None));
            }
            for index in &group.services {
                let entry = &self.host_index.entries[*index];
                let domains = self.service_domains(entry, group.port);
                out.extend(self.virtual_host(group, &entry.host, domains, Some(entry)));
            }
        }
        out
    }

    fn service_domains(&self, entry: &HostEntry<'_>, port: u16) -> Domains {
        let view = self.view;
        let knobs = &view.settings.knobs;
        let spelling = HostSpelling {
            domain: &view.proxy.domain,
            absolute: knobs.absolute_fqdn_domain,
            port: (self.port == 0).then_some(port),
        };
        let service = entry.service;
        // As upstream: on a single port, a service without cluster addresses has only its first address as a domain.
        let dialled = if self.port != 0 && service.cluster_addresses.is_empty() {
            vec![address(service, &view.proxy, knobs)]
        } else {
            addresses(service, &view.proxy, knobs)
        };
        domains::of_service(service, &entry.host, &dialled, &spelling)
    }

    /// `None` if its name or all of its domains are taken.
    fn virtual_host(
        &mut self,
        group: &HostGroup,
        host: &str,
        domains: Domains,
        entry: Option<&HostEntry<'_>>,
    ) -> Option<Hashed<VirtualHostPlan>> {
        let name = Str::from(with_port(host, group.port));
        if !self.names.insert(name.clone()) {
            return None;
        }
        let mut free = self.free(domains);
        if self.port == 0 && group.port != HTTP_PORT {
            // Only port 80 may be omitted from a Host header.
            free.retain(|domain| domain.contains(':'));
        }
        if free.is_empty() {
            return None;
        }
        Some(Hashed::new(VirtualHostPlan {
            name,
            domains: free,
            routes: group.routes.clone(),
            attempt_count: self.attempt_count,
            session: entry.and_then(|e| destination::session(self.view, e.service)),
            require_tls: false,
        }))
    }

    fn free(&mut self, domains: Domains) -> Vec<Str> {
        let Domains { mut all, short } = domains;
        all.retain(|domain| {
            let key = if domain.bytes().any(|b| b.is_ascii_uppercase()) {
                domain.to_lowercase().into()
            } else {
                domain.clone()
            };
            if self.domains.contains(&key) {
                return false;
            }
            let of_another = short.contains(domain) && self.full_names.contains(&**domain);
            if !of_another {
                self.domains.insert(key);
            }
            !of_another
        });
        all
    }
}
