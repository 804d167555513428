//! Runs one source, applies its changes, and waits for conditions on the result.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::change::{Batch, Change};
use model::config::{Object, Spec};
use model::endpoint::{Endpoint, Health};
use model::fetch_requests::KeySets;
use model::names::ServiceKey;
use model::service::Service;
use model::settings::{Mesh, Networks};
use sources::health::SourceReport;
use sources::registry::normalize;
use sources::source::{Source, SourceTask, spawn};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A wait this long is a failure.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Follower {
    batches: mpsc::Receiver<Batch>,
    running: SourceTask,
    pub(crate) objects: BTreeMap<String, Object>,
    pub(crate) services: BTreeMap<ServiceKey, Arc<Service>>,
    pub(crate) endpoints: BTreeMap<ServiceKey, Vec<Endpoint>>,
    /// Services of ServiceEntries, by the key of the object.
    entries: BTreeMap<String, ServiceKey>,
    pub(crate) mesh: Option<Mesh>,
    pub(crate) networks: Option<Networks>,
    pub(crate) keys: KeySets,
    pub(crate) problems: Vec<String>,
    pub(crate) synced: usize,
    /// How many endpoints stopped serving since the start.
    pub(crate) lost: usize,
    /// Keys applied and deleted, in order, since the start.
    pub(crate) log: Vec<String>,
    _stop: DropGuard,
}

impl Follower {
    pub(crate) fn new(source: impl Source) -> Follower {
        let (sender, batches) = mpsc::channel(16);
        let cancel = CancellationToken::new();
        let running = spawn(source, sender, cancel.clone());
        Follower {
            batches,
            running,
            objects: BTreeMap::new(),
            services: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            entries: BTreeMap::new(),
            mesh: None,
            networks: None,
            keys: KeySets::new(),
            problems: Vec::new(),
            synced: 0,
            lost: 0,
            log: Vec::new(),
            _stop: cancel.drop_guard(),
        }
    }

    pub(crate) async fn synced(source: impl Source) -> Follower {
        let mut follower = Follower::new(source);
        follower.until("in sync", |f| f.synced > 0).await;
        follower
    }

    /// Applies batches until the condition holds.
    pub(crate) async fn until(&mut self, what: &str, holds: impl Fn(&Follower) -> bool) {
        while !holds(self) {
            match tokio::time::timeout(PATIENCE, self.batches.recv()).await {
                Ok(Some(batch)) => self.take_in(batch),
                Ok(None) => panic!("the source ended before: {what}"),
                Err(_) => panic!("never came: {what}\n{:#?}\n{:#?}", self.log, self.problems),
            }
        }
    }

    /// How many batches were sent and not applied.
    pub(crate) fn waiting(&self) -> usize {
        self.batches.len()
    }

    /// The distinct addresses that serve a host, in order.
    pub(crate) fn serving(&self, host: &str) -> Vec<String> {
        let of_host = self.endpoints.iter().filter(|(key, _)| key.hostname == *host);
        let all: BTreeSet<_> = of_host.flat_map(|(_, list)| serving(list)).collect();
        all.into_iter().map(|(address, _)| address).collect()
    }

    pub(crate) fn has_service(&self, host: &str) -> bool {
        self.services.keys().chain(self.entries.values()).any(|key| key.hostname == *host)
    }

    pub(crate) fn report(&self) -> SourceReport {
        self.running.health.report()
    }

    /// The first host of a VirtualService.
    pub(crate) fn host(&self, name: &str) -> Option<&str> {
        match &self.objects.get(&format!("VirtualService shop/{name}"))?.spec {
            Spec::VirtualService(service) => service.hosts.first().map(String::as_str),
            _ => None,
        }
    }

    /// Applies batches until the condition on the source's health holds.
    pub(crate) async fn until_state(&mut self, what: &str, holds: impl Fn(&SourceReport) -> bool) {
        let begun = tokio::time::Instant::now();
        while !holds(&self.report()) {
            assert!(begun.elapsed() < PATIENCE, "never came: {what}\n{:#?}", self.report());
            if let Ok(Some(batch)) = tokio::time::timeout(Duration::from_millis(20), self.batches.recv()).await {
                self.take_in(batch);
            }
        }
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.objects.values().map(|object| &*object.meta.name).collect()
    }

    pub(crate) fn has_problem(&self, parts: &[&str]) -> bool {
        self.problems.iter().any(|problem| parts.iter().all(|part| problem.contains(part)))
    }

    fn take_in(&mut self, batch: Batch) {
        for change in batch.changes {
            match change {
                Change::Applied(object) => {
                    self.log.push(format!("+{}", object.key()));
                    self.take_in_entry(&object);
                    self.objects.insert(object.key().to_string(), object);
                }
                Change::Deleted(key) => {
                    self.log.push(format!("-{key}"));
                    self.objects.remove(&key.to_string());
                    if let Some(service) = self.entries.remove(&key.to_string()) {
                        self.serve(service, Vec::new());
                    }
                }
                Change::Problems(problems) => self.problems = problems.iter().map(ToString::to_string).collect(),
                Change::Synced => self.synced += 1,
                Change::ServiceApplied(service) => {
                    let key = service.key();
                    self.services.insert(key, service);
                }
                Change::Endpoints(key, endpoints) => self.serve(key, endpoints),
                Change::Mesh(mesh) => self.mesh = Some(mesh),
                Change::Networks(networks) => self.networks = Some(networks),
                Change::ServiceDeleted(key) => _ = self.services.remove(&key),
                Change::KeySet(source, Some(keys)) => _ = self.keys.insert(source, keys),
                Change::KeySet(source, None) => _ = self.keys.remove(&source),
                Change::Renew => {}
                Change::WorkloadApplied(_)
                | Change::WorkloadDeleted(_)
                | Change::Namespace(..)
                | Change::ConflictSettings(_)
                | Change::Credential(..) => {}
            }
        }
    }

    fn serve(&mut self, key: ServiceKey, endpoints: Vec<Endpoint>) {
        let before = self.endpoints.get(&key).map(|known| serving(known)).unwrap_or_default();
        self.lost += before.difference(&serving(&endpoints)).count();
        self.endpoints.insert(key, endpoints);
    }

    /// The first host of a ServiceEntry, with its endpoints at the first port.
    fn take_in_entry(&mut self, object: &Object) {
        let Spec::ServiceEntry(entry) = &object.spec else { return };
        let (entry, namespace) = (entry.open(), &object.meta.namespace);
        let key = ServiceKey { hostname: entry.hosts[0].as_str().into(), namespace: namespace.clone() };
        let port = entry.ports.first().map_or(0, |port| port.number);
        let endpoint = |address: &str| Endpoint { port, ..normalize::endpoint(address, namespace, &"".into()) };
        let endpoints = entry.endpoints.iter().map(|one| endpoint(&one.address)).collect();
        self.entries.insert(object.key().to_string(), key.clone());
        self.serve(key, endpoints);
    }
}

fn serving(endpoints: &[Endpoint]) -> BTreeSet<(String, u32)> {
    let healthy = endpoints.iter().filter(|e| e.health == Health::Healthy);
    healthy.map(|e| (e.address().to_owned(), e.port)).collect()
}
