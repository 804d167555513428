//! The source: follows the names of all services and the instances of each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::change::SourceId;
use model::names::{ClusterId, Str};
use model::problem::{Problem, Subject};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::agents::{Agents, CatalogQuery, IndexProgress, IndexStep, QueryResponse};
use super::catalog_event::{CatalogEvent, SERVICES_PATH};
use super::catalog_watch::CatalogWatch;
use super::error::ConsulError;
use super::mapping;
use super::options::ConsulOptions;
use super::schema::CatalogServices;
use super::service_watches::ServiceWatches;
use crate::backoff::Backoff;
use crate::registry::adapter::SourcePlace;
use crate::registry::diff::RegistryDiff;
use crate::registry::poll_interval::PollInterval;
use crate::source::{ChangeSender, Source, SourceError};

/// The initial sync stops waiting for a service after this many failures, if other services can be read.
const TRIES: u32 = 5;

/// A response without instances takes effect after this time. The list of names is expected to report the removal of
/// the service before, together with that of others.
const EMPTY_FOR: Duration = Duration::from_secs(1);

/// The source of one Consul.
#[derive(Debug)]
pub struct ConsulRegistry {
    id: SourceId,
    options: ConsulOptions,
    cluster: ClusterId,
    diff: RegistryDiff,
    /// Problems of single services.
    problems: BTreeMap<Str, Problem>,
    is_synced: bool,
}

impl ConsulRegistry {
    pub fn new(options: ConsulOptions, place: SourcePlace) -> ConsulRegistry {
        let SourcePlace { id, cluster, guard } = place;
        let diff = RegistryDiff::new(guard);
        ConsulRegistry { id, options, cluster, diff, problems: BTreeMap::new(), is_synced: false }
    }
}

impl Source for ConsulRegistry {
    fn id(&self) -> SourceId {
        self.id.clone()
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        let agents =
            Agents::new(&self.options, sender.health().clone()).map_err(|e| SourceError::Failed(e.to_string()))?;
        let (events, mut received) = mpsc::channel(256);
        let mut run = ConsulRun::new(self, Arc::new(agents), events);
        loop {
            let next_removal = run.next_removal();
            tokio::select! {
                event = received.recv() => {
                    let Some(event) = event else { return Err(SourceError::Failed("all watches of Consul ended".to_owned())) };
                    run.apply(event, &sender);
                    while let Ok(more) = received.try_recv() {
                        run.apply(more, &sender);
                    }
                }
                () = at(next_removal) => run.retain(),
                // A watch does not end by itself, so this is a bug; all watches are restarted.
                Some(ended) = run.tasks.join_next() => {
                    return Err(SourceError::Failed(format!("a watch of Consul ended: {ended:?}")));
                }
            }
            run.send(&sender).await?;
        }
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// How instances are watched.
enum WatchMode {
    PerService(ServiceWatches),
    Catalog(CatalogWatch),
}

/// One run of the source. State that survives a restart is in `consul`.
struct ConsulRun<'a> {
    consul: &'a mut ConsulRegistry,
    agents: Arc<Agents>,
    events: mpsc::Sender<CatalogEvent>,
    watching: WatchMode,
    tasks: JoinSet<()>,
    names: BTreeSet<Str>,
    /// Services with a name and without instances, and when their removal takes effect.
    empty: BTreeMap<Str, Instant>,
    /// Services of the first list of names that were not read yet.
    awaited: BTreeSet<Str>,
    has_names: bool,
    was_filtered: Option<bool>,
    /// Failed queries, with the number of failures in a row.
    failing: BTreeMap<Str, u32>,
}

impl<'a> ConsulRun<'a> {
    fn new(consul: &'a mut ConsulRegistry, agents: Arc<Agents>, events: mpsc::Sender<CatalogEvent>) -> ConsulRun<'a> {
        let mut tasks = JoinSet::new();
        tasks.spawn(watch_names(agents.clone(), events.clone(), consul.options.clone()));
        ConsulRun {
            consul,
            agents,
            events,
            watching: WatchMode::PerService(ServiceWatches::default()),
            tasks,
            names: BTreeSet::new(),
            empty: BTreeMap::new(),
            awaited: BTreeSet::new(),
            has_names: false,
            was_filtered: None,
            failing: BTreeMap::new(),
        }
    }

    fn apply(&mut self, event: CatalogEvent, sender: &ChangeSender) {
        match event {
            CatalogEvent::Services(response) => {
                let names = self.selected(&response.value);
                // A token that loses rights must not remove services.
                let is_less = self.was_filtered == Some(false) && response.is_filtered;
                if is_less && !names.is_superset(&self.names) {
                    return self.failed(SERVICES_PATH.into(), ConsulError::HiddenServices, sender);
                }
                self.was_filtered.get_or_insert(response.is_filtered);
                self.succeeded(SERVICES_PATH, sender);
                self.follow(names, &response, sender);
            }
            CatalogEvent::Instances(name, response) => {
                if !self.names.contains(&name) {
                    return;
                }
                if self.was_filtered == Some(false) && response.is_filtered {
                    let error = ConsulError::HiddenInstances(name.to_string());
                    return self.failed(name, error, sender);
                }
                self.succeeded(&name, sender);
                self.awaited.remove(&name);
                if response.value.0.is_empty() && self.consul.diff.get(&name).is_some() {
                    self.empty.entry(name).or_insert_with(|| Instant::now() + EMPTY_FOR);
                    return;
                }
                self.empty.remove(&name);
                let ConsulRegistry { options, cluster, diff, problems, .. } = &mut *self.consul;
                let (listing, problem) = mapping::listing(&name, response.value.0, options, cluster);
                match problem {
                    Some(problem) => _ = problems.insert(name.clone(), problem),
                    None => _ = problems.remove(&name),
                }
                diff.put(&name, listing);
            }
            CatalogEvent::Unchanged(query) => self.succeeded(&query, sender),
            CatalogEvent::Failed(query, error) => self.failed(query, error, sender),
        }
    }

    fn selected(&self, names: &CatalogServices) -> BTreeSet<Str> {
        let tag = &self.consul.options.tag;
        let is_selected = |(name, tags): &(&String, &Vec<String>)| {
            *name != mapping::OWN_SERVICE && (tag.is_empty() || tags.contains(tag))
        };
        names.iter().filter(is_selected).map(|(name, _)| name.as_str().into()).collect()
    }

    /// Watches exactly these services.
    fn follow(&mut self, names: BTreeSet<Str>, response: &QueryResponse<CatalogServices>, sender: &ChangeSender) {
        if !std::mem::replace(&mut self.has_names, true) {
            self.awaited.clone_from(&names);
        }
        self.awaited.retain(|name| names.contains(name));
        self.failing.retain(|query, _| names.contains(query) || **query == *SERVICES_PATH);
        self.names = names;
        self.retain();
        let limit = self.consul.options.watches;
        // Hysteresis: per-service watches are resumed a fifth below the limit.
        let is_many = match self.watching {
            WatchMode::PerService(_) => self.names.len() > limit,
            WatchMode::Catalog(_) => self.names.len() > limit * 4 / 5,
        };
        match (&mut self.watching, is_many) {
            (WatchMode::Catalog(catalog), true) => catalog.follow(response.value.clone(), &self.names),
            (WatchMode::PerService(services), false) => {
                services.follow(&self.names, &self.agents, &self.events, &self.consul.options)
            }
            (_, true) => {
                let catalog = CatalogWatch::start(self.agents.clone(), self.events.clone(), &self.consul.options);
                catalog.follow(response.value.clone(), &self.names);
                self.watching = WatchMode::Catalog(catalog);
            }
            (_, false) => {
                let mut services = ServiceWatches::default();
                services.follow(&self.names, &self.agents, &self.events, &self.consul.options);
                self.watching = WatchMode::PerService(services);
            }
        }
        sender.health().set_watches(1 + if is_many { 1 } else { self.names.len() });
    }

    /// Removes services that no longer exist.
    fn retain(&mut self) {
        let now = Instant::now();
        self.empty.retain(|name, _| self.names.contains(name));
        let is_there = |name: &&Str| self.empty.get(*name).is_none_or(|from| *from > now);
        let there: BTreeSet<Str> = self.names.iter().filter(is_there).cloned().collect();
        if self.consul.diff.retain(&there, now) {
            self.empty.retain(|name, _| there.contains(name));
            self.consul.problems.retain(|name, _| there.contains(name));
        }
    }

    /// When the next removal takes effect: of a loss that is held back, or of a service without instances.
    fn next_removal(&self) -> Option<Instant> {
        let now = Instant::now();
        let next_empty = self.empty.values().filter(|from| **from > now).min().copied();
        self.consul.diff.held_until().into_iter().chain(next_empty).min()
    }

    fn succeeded(&mut self, query: &str, sender: &ChangeSender) {
        self.failing.remove(query);
        if self.failing.is_empty() {
            sender.health().mark_reachable();
        }
    }

    fn failed(&mut self, query: Str, error: ConsulError, sender: &ChangeSender) {
        sender.health().mark_unreachable(error.to_string());
        *self.failing.entry(query).or_default() += 1;
    }

    async fn send(&mut self, sender: &ChangeSender) -> Result<(), SourceError> {
        let mut problems: Vec<Problem> = self.consul.problems.values().cloned().collect();
        if self.consul.is_synced {
            return self.consul.diff.send(sender, problems).await;
        }
        // A service that cannot be read does not delay the others, if others can be read.
        let is_skipped = |name: &Str| self.failing.get(name).is_some_and(|tries| *tries >= TRIES);
        let some_were_read = self.awaited.len() < self.names.len() || self.names.is_empty();
        if !self.has_names || !some_were_read || !self.awaited.iter().all(is_skipped) {
            return Ok(());
        }
        self.consul.is_synced = true;
        let skipped = self.awaited.iter().map(|name| {
            Problem::error(
                Subject::registry_service(mapping::REGISTRY, name.clone()),
                "could not be read at startup; left out until it can be read",
            )
        });
        problems.extend(skipped);
        self.consul.diff.send_synced(sender, problems).await
    }
}

async fn watch_names(agents: Arc<Agents>, events: mpsc::Sender<CatalogEvent>, options: ConsulOptions) {
    let (mut progress, mut backoff, mut poll) =
        (IndexProgress::default(), Backoff::default(), PollInterval::new(options.interval.0));
    let mut known = BTreeSet::new();
    loop {
        poll.ready().await;
        let query = CatalogQuery { path: SERVICES_PATH, parameters: "", index: progress.index };
        let event = match agents
            .query_complete(query, &mut known, |names: &CatalogServices| names.keys().cloned().collect())
            .await
        {
            Ok(response) => {
                backoff.reset();
                match progress.step(&response) {
                    IndexStep::Restart => continue,
                    IndexStep::Unchanged => CatalogEvent::Unchanged(SERVICES_PATH.into()),
                    IndexStep::New => CatalogEvent::Services(response),
                }
            }
            Err(error) => {
                progress = IndexProgress::default();
                let sent = events.send(CatalogEvent::Failed(SERVICES_PATH.into(), error)).await;
                backoff.wait().await;
                if sent.is_err() { return } else { continue }
            }
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
}
