//! The DNS registry: names whose SRV, or A and AAAA records are the endpoints of a service. Each name is asked for
//! again when its records expire; a server that cannot tell leaves the last answer in force.

mod options;
mod resolver;

pub use options::{DnsOptions, DnsService};

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::rr::{RData, RecordType};
use model::change::SourceId;
use model::endpoint::Endpoint;
use model::names::{ClusterId, Namespace, Str};
use model::port::{Port, Protocol};
use model::problem::{Problem, Subject};
use model::service::{Registry, Service};
use tokio::time::Instant;

use crate::backoff::jittered;
use crate::registry::diff::{MassLossGuard, RegistryDiff, ServiceListing};
use crate::registry::normalize;
use crate::source::{ChangeSender, Source, SourceError};
use resolver::DnsResolver;

/// How soon a name is asked for again that nobody could tell.
const AFTER_FAILURE: Duration = Duration::from_secs(2);

/// The registry of these names.
#[derive(Debug)]
pub struct DnsRegistry {
    id: SourceId,
    options: DnsOptions,
    cluster: ClusterId,
    diff: RegistryDiff,
    /// What could not be found out, by host.
    failures: BTreeMap<String, String>,
}

/// One address that serves, with its port and share of the traffic.
type ResolvedTarget = (IpAddr, u16, u32);

impl DnsRegistry {
    pub fn new(id: SourceId, options: DnsOptions, cluster: ClusterId, guard: MassLossGuard) -> DnsRegistry {
        DnsRegistry { id, options, cluster, diff: RegistryDiff::new(guard), failures: BTreeMap::new() }
    }

    /// Asks for one name. Gives how long its answer holds.
    async fn refresh(&mut self, service: &DnsService, resolver: &DnsResolver) -> Duration {
        match targets(service, resolver).await {
            Ok((targets, valid_for)) => {
                self.failures.remove(&service.host);
                let listing = self.listing(service, targets);
                self.diff.put(&Str::from(service.host.as_str()), listing);
                valid_for.clamp(self.options.shortest.0, self.options.longest.0)
            }
            Err(reason) => {
                self.failures.insert(service.host.clone(), reason);
                AFTER_FAILURE
            }
        }
    }

    fn listing(&self, named: &DnsService, targets: Vec<ResolvedTarget>) -> Option<ServiceListing> {
        let hostname = normalize::hostname(&named.host, &[])?;
        let namespace = Namespace::from(self.options.namespace.as_str());
        let protocol = Protocol::parse(&named.protocol);
        let word =
            if protocol == Protocol::Unknown { "port".to_owned() } else { protocol.as_str().to_ascii_lowercase() };
        let port = Port { name: format!("{word}-{}", named.port).into(), number: named.port, protocol };
        let endpoint = |(address, target, weight): ResolvedTarget| Endpoint {
            service_port: port.name.clone(),
            service_port_number: port.number,
            port: u32::from(target),
            weight,
            workload_name: named.host.as_str().into(),
            ..normalize::endpoint(&address.to_string(), &namespace, &self.cluster)
        };
        let endpoints = normalize::in_order(targets.into_iter().map(endpoint).collect());
        let service = Service::new(Registry::Dns, hostname, namespace.clone(), named.host.as_str(), vec![port]);
        Some(ServiceListing { service: Arc::new(service), endpoints: endpoints.into() })
    }

    async fn publish(&mut self, sender: &ChangeSender) -> Result<(), SourceError> {
        let about = |(host, reason): (&String, &String)| {
            let kept = if self.diff.get(host).is_some() { "; keeping the last answer" } else { "" };
            Problem::error(Subject::registry_service(Registry::Dns, host.as_str()), format!("{reason}{kept}"))
        };
        let problems: Vec<Problem> = self.failures.iter().map(about).collect();
        let health = sender.health();
        if self.failures.len() == self.options.services.len() {
            health.mark_unreachable(self.failures.values().next().cloned().unwrap_or_default());
            return self.diff.send(sender, problems).await;
        }
        health.mark_reachable();
        self.diff.send_synced(sender, problems).await
    }
}

/// Where a service is, and how long that holds.
async fn targets(service: &DnsService, resolver: &DnsResolver) -> Result<(Vec<ResolvedTarget>, Duration), String> {
    if service.srv.is_empty() {
        let name = if service.name.is_empty() { &service.host } else { &service.name };
        let (addresses, valid_for) = addresses(name, resolver).await?;
        return Ok((addresses.into_iter().map(|address| (address, service.port, 0)).collect(), valid_for));
    }
    let records = resolver.look_up(&service.srv, RecordType::SRV).await?;
    let mut valid_for = records.valid_for;
    let all: Vec<_> =
        records.data.iter().filter_map(|data| if let RData::SRV(srv) = data { Some(srv) } else { None }).collect();
    let first = all.iter().map(|srv| srv.priority).min();
    let mut found = Vec::new();
    // A single dot as target says that there is no such service.
    for srv in all.into_iter().filter(|srv| Some(srv.priority) == first && !srv.target.is_root()) {
        let (addresses, of_target) = addresses(&srv.target.to_ascii(), resolver).await?;
        valid_for = valid_for.min(of_target);
        found.extend(addresses.into_iter().map(|address| (address, srv.port, u32::from(srv.weight))));
    }
    // Without any weight all are alike; beside others a target of weight 0 is hardly to be used.
    if found.iter().any(|(_, _, weight)| *weight > 0) {
        found.iter_mut().for_each(|(_, _, weight)| *weight = (*weight).max(1));
    }
    Ok((found, valid_for))
}

async fn addresses(name: &str, resolver: &DnsResolver) -> Result<(Vec<IpAddr>, Duration), String> {
    let (v4, v6) = (resolver.look_up(name, RecordType::A).await?, resolver.look_up(name, RecordType::AAAA).await?);
    let found: Vec<IpAddr> = v4.data.iter().chain(&v6.data).filter_map(RData::ip_addr).collect();
    // How long a name has no address of a family matters only where it has none at all.
    let held = [&v4, &v6].into_iter().filter(|records| found.is_empty() || !records.data.is_empty());
    let valid_for = held.map(|records| records.valid_for).min().unwrap_or_default();
    Ok((found, valid_for))
}

impl Source for DnsRegistry {
    fn id(&self) -> SourceId {
        self.id.clone()
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        let resolver = DnsResolver::new(&self.options.servers, self.options.timeout.0).map_err(SourceError::Failed)?;
        let services = self.options.services.clone();
        let mut due = vec![Instant::now(); services.len()];
        loop {
            let now = Instant::now();
            for (service, due) in services.iter().zip(&mut due).filter(|(_, due)| **due <= now) {
                sender.health().count_request();
                let valid_for = self.refresh(service, &resolver).await;
                *due = Instant::now() + jittered(valid_for);
            }
            self.publish(&sender).await?;
            let next = due.iter().min().copied().unwrap_or(now + self.options.longest.0);
            tokio::time::sleep_until(next).await;
        }
    }
}
