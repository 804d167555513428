//! The source: looks each name up again when its records expire. A failed lookup keeps the last known endpoints.

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

use super::options::{DnsOptions, DnsService};
use super::resolver::{DnsResolver, LookupError};
use crate::backoff::jittered;
use crate::registry::adapter::SourcePlace;
use crate::registry::diff::{RegistryDiff, ServiceListing};
use crate::registry::normalize;
use crate::source::{ChangeSender, Source, SourceError};

/// The name and merge rank of the registry.
pub(super) const REGISTRY: Registry = Registry::Adapter { rank: 50, name: "DNS" };

/// Retry interval after a failed lookup.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// The source of all names of one DNS registry.
#[derive(Debug)]
pub struct DnsRegistry {
    id: SourceId,
    options: DnsOptions,
    cluster: ClusterId,
    diff: RegistryDiff,
    /// The error of the last lookup, by host.
    failures: BTreeMap<String, String>,
}

/// Address, port and weight of an endpoint.
type ResolvedTarget = (IpAddr, u16, u32);

impl DnsRegistry {
    pub fn new(options: DnsOptions, place: SourcePlace) -> DnsRegistry {
        let SourcePlace { id, cluster, guard } = place;
        DnsRegistry { id, options, cluster, diff: RegistryDiff::new(guard), failures: BTreeMap::new() }
    }

    /// Looks up one name. Returns when to look it up again.
    async fn refresh(&mut self, service: &DnsService, resolver: &DnsResolver) -> Duration {
        match targets(service, resolver).await {
            Ok((targets, valid_for)) => {
                self.failures.remove(&service.host);
                let listing = self.listing(service, targets);
                self.diff.put(&Str::from(service.host.as_str()), listing);
                valid_for.clamp(self.options.shortest.0, self.options.longest.0)
            }
            Err(error) => {
                self.failures.insert(service.host.clone(), error.to_string());
                RETRY_INTERVAL
            }
        }
    }

    fn listing(&self, service: &DnsService, targets: Vec<ResolvedTarget>) -> Option<ServiceListing> {
        let hostname = normalize::hostname(&service.host, &[])?;
        let namespace = Namespace::from(self.options.namespace.as_str());
        let protocol = Protocol::parse(&service.protocol);
        let word =
            if protocol == Protocol::Unknown { "port".to_owned() } else { protocol.as_str().to_ascii_lowercase() };
        let port = Port { name: format!("{word}-{}", service.port).into(), number: service.port, protocol };
        let endpoint = |(address, target, weight): ResolvedTarget| Endpoint {
            service_port: port.name.clone(),
            service_port_number: port.number,
            port: u32::from(target),
            weight,
            workload_name: service.host.as_str().into(),
            ..normalize::endpoint(&address.to_string(), &namespace, &self.cluster)
        };
        let endpoints = normalize::in_order(targets.into_iter().map(endpoint).collect());
        let listed = Service::new(REGISTRY, hostname, namespace.clone(), service.host.as_str(), vec![port]);
        Some(ServiceListing { service: Arc::new(listed), endpoints: endpoints.into() })
    }

    async fn publish(&mut self, sender: &ChangeSender) -> Result<(), SourceError> {
        let problem = |(host, error): (&String, &String)| {
            let kept = if self.diff.get(host).is_some() { "; keeping the last known endpoints" } else { "" };
            Problem::error(Subject::registry_service(REGISTRY, host.as_str()), format!("{error}{kept}"))
        };
        let problems: Vec<Problem> = self.failures.iter().map(problem).collect();
        let health = sender.health();
        if self.failures.len() == self.options.services.len() {
            health.mark_unreachable(self.failures.values().next().cloned().unwrap_or_default());
            return self.diff.send(sender, problems).await;
        }
        health.mark_reachable();
        self.diff.send_synced(sender, problems).await
    }
}

/// The targets of a service, and how long they are valid.
async fn targets(service: &DnsService, resolver: &DnsResolver) -> Result<(Vec<ResolvedTarget>, Duration), LookupError> {
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
    // The target "." means that the service is not available (RFC 2782).
    for srv in all.into_iter().filter(|srv| Some(srv.priority) == first && !srv.target.is_root()) {
        let (addresses, of_target) = addresses(&srv.target.to_ascii(), resolver).await?;
        valid_for = valid_for.min(of_target);
        found.extend(addresses.into_iter().map(|address| (address, srv.port, u32::from(srv.weight))));
    }
    // Among weighted targets, weight 0 means the smallest share. Without any weight all shares are equal.
    if found.iter().any(|(_, _, weight)| *weight > 0) {
        found.iter_mut().for_each(|(_, _, weight)| *weight = (*weight).max(1));
    }
    Ok((found, valid_for))
}

async fn addresses(name: &str, resolver: &DnsResolver) -> Result<(Vec<IpAddr>, Duration), LookupError> {
    let (v4, v6) = (resolver.look_up(name, RecordType::A).await?, resolver.look_up(name, RecordType::AAAA).await?);
    let found: Vec<IpAddr> = v4.data.iter().chain(&v6.data).filter_map(RData::ip_addr).collect();
    // The TTL of an empty response matters only where both families are empty.
    let held = [&v4, &v6].into_iter().filter(|records| found.is_empty() || !records.data.is_empty());
    let valid_for = held.map(|records| records.valid_for).min().unwrap_or_default();
    Ok((found, valid_for))
}

impl Source for DnsRegistry {
    fn id(&self) -> SourceId {
        self.id.clone()
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        let resolver = DnsResolver::new(&self.options.servers, self.options.timeout.0)
            .map_err(|e| SourceError::Failed(e.to_string()))?;
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
