//! The Consul registry. One question waits for the list of names; each service is watched by a question of its
//! own, or, when there are more services than an agent takes connections, through lists of all (`lists`).
//! What cannot be read is never taken for empty.

mod agents;
mod catalog_watch;
mod mapping;
mod options;
mod schema;
mod service_watches;

pub use options::{ConsulOptions, Profile};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::change::SourceId;
use model::names::{ClusterId, Str};
use model::problem::{Problem, Subject};
use model::service::Registry;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::registry::diff::{MassLossGuard, RegistryDiff};
use crate::registry::poll_interval::PollInterval;
use crate::source::{ChangeSender, Source, SourceError};
use agents::{Agents, CatalogQuery, IndexProgress, IndexStep, QueryResponse};
use catalog_watch::CatalogWatch;
use schema::{CatalogServices, ConsulInstances};
use service_watches::ServiceWatches;

const NAMES: &str = "/v1/catalog/services";
/// A service that cannot be read this often while others can does not hold back the start.
const TRIES: u32 = 5;

/// An answer without instances is believed after this time. When services go, the list of names says so too,
/// and says it of all of them at once.
const EMPTY_FOR: Duration = Duration::from_secs(1);

/// What a watcher saw.
#[derive(Debug)]
enum CatalogEvent {
    Services(QueryResponse<CatalogServices>),
    Instances(Str, QueryResponse<ConsulInstances>),
    /// The question was answered and nothing changed.
    Same(Str),
    /// The question, and why there is no answer that counts.
    Unread(Str, String),
}

/// The registry of one Consul.
#[derive(Debug)]
pub struct ConsulRegistry {
    id: SourceId,
    options: ConsulOptions,
    cluster: ClusterId,
    diff: RegistryDiff,
    /// What is wrong with single services.
    problems: BTreeMap<Str, Problem>,
    is_synced: bool,
}

impl ConsulRegistry {
    pub fn new(id: SourceId, options: ConsulOptions, cluster: ClusterId, guard: MassLossGuard) -> ConsulRegistry {
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
        let (events, mut seen) = mpsc::channel(256);
        let mut run = ConsulRun::new(self, Arc::new(agents), events);
        loop {
            let reconsider = run.reconsider();
            tokio::select! {
                event = seen.recv() => {
                    let Some(event) = event else { return Err(SourceError::Failed("no watcher is left".to_owned())) };
                    run.take(event, &sender);
                    while let Ok(more) = seen.try_recv() {
                        run.take(more, &sender);
                    }
                }
                () = at(reconsider) => run.retain(),
                // A watcher ends only by a mistake of ours; all of them start anew then.
                Some(ended) = run.tasks.join_next() => {
                    return Err(SourceError::Failed(format!("a watcher ended: {ended:?}")));
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

/// How services are watched.
enum WatchMode {
    PerService(ServiceWatches),
    Catalog(CatalogWatch),
}

/// One life of the source; what outlasts it is in `consul`.
struct ConsulRun<'a> {
    consul: &'a mut ConsulRegistry,
    agents: Arc<Agents>,
    events: mpsc::Sender<CatalogEvent>,
    watching: WatchMode,
    tasks: JoinSet<()>,
    names: BTreeSet<Str>,
    /// Services that are listed and have no instance, and from when on that is believed.
    empty: BTreeMap<Str, Instant>,
    /// Services that were not read since the first list of names came.
    awaited: BTreeSet<Str>,
    has_names: bool,
    was_filtered: Option<bool>,
    /// Questions without an answer, and how often in a row.
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

    fn take(&mut self, event: CatalogEvent, sender: &ChangeSender) {
        match event {
            CatalogEvent::Services(answer) => {
                let names = self.selected(&answer.value);
                // A token that suddenly sees less is a mistake or an attack, not the end of its services.
                let is_less = self.was_filtered == Some(false) && answer.is_filtered;
                if is_less && !names.is_superset(&self.names) {
                    return self.unread(NAMES.into(), "the token may not see all services any more".to_owned(), sender);
                }
                self.was_filtered.get_or_insert(answer.is_filtered);
                self.read(NAMES, sender);
                self.follow(names, &answer, sender);
            }
            CatalogEvent::Instances(name, answer) => {
                if !self.names.contains(&name) {
                    return;
                }
                if self.was_filtered == Some(false) && answer.is_filtered {
                    let reason = format!("the token may not see all instances of {name} any more");
                    return self.unread(name, reason, sender);
                }
                self.read(&name, sender);
                self.awaited.remove(&name);
                if answer.value.0.is_empty() && self.consul.diff.get(&name).is_some() {
                    self.empty.entry(name).or_insert_with(|| Instant::now() + EMPTY_FOR);
                    return;
                }
                self.empty.remove(&name);
                let ConsulRegistry { options, cluster, diff, problems, .. } = &mut *self.consul;
                let (listing, problem) = mapping::listing(&name, answer.value.0, options, cluster);
                match problem {
                    Some(problem) => _ = problems.insert(name.clone(), problem),
                    None => _ = problems.remove(&name),
                }
                diff.put(&name, listing);
            }
            CatalogEvent::Same(question) => self.read(&question, sender),
            CatalogEvent::Unread(question, reason) => self.unread(question, reason, sender),
        }
    }

    fn selected(&self, names: &CatalogServices) -> BTreeSet<Str> {
        let tag = &self.consul.options.tag;
        let is_wanted = |(name, tags): &(&String, &Vec<String>)| {
            *name != mapping::OWN_SERVICE && (tag.is_empty() || tags.contains(tag))
        };
        names.iter().filter(is_wanted).map(|(name, _)| name.as_str().into()).collect()
    }

    /// Watches these services and no others.
    fn follow(&mut self, names: BTreeSet<Str>, answer: &QueryResponse<CatalogServices>, sender: &ChangeSender) {
        if !std::mem::replace(&mut self.has_names, true) {
            self.awaited.clone_from(&names);
        }
        self.awaited.retain(|name| names.contains(name));
        self.failing.retain(|question, _| names.contains(question) || **question == *NAMES);
        self.names = names;
        self.retain();
        let limit = self.consul.options.watches;
        // Near the limit nothing flaps: it takes a fifth less to come back.
        let is_many = match self.watching {
            WatchMode::PerService(_) => self.names.len() > limit,
            WatchMode::Catalog(_) => self.names.len() > limit * 4 / 5,
        };
        match (&mut self.watching, is_many) {
            (WatchMode::Catalog(lists), true) => lists.follow(answer.value.clone(), &self.names),
            (WatchMode::PerService(each), false) => {
                each.follow(&self.names, &self.agents, &self.events, &self.consul.options)
            }
            (_, true) => {
                let lists = CatalogWatch::start(self.agents.clone(), self.events.clone(), &self.consul.options);
                lists.follow(answer.value.clone(), &self.names);
                self.watching = WatchMode::Catalog(lists);
            }
            (_, false) => {
                let mut each = ServiceWatches::default();
                each.follow(&self.names, &self.agents, &self.events, &self.consul.options);
                self.watching = WatchMode::PerService(each);
            }
        }
        sender.health().set_watches(1 + if is_many { 1 } else { self.names.len() });
    }

    /// Takes away what is not there any more.
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

    /// When to look again at what is missing: a loss that is held back, or the next service to be believed empty.
    fn reconsider(&self) -> Option<Instant> {
        let now = Instant::now();
        let next_empty = self.empty.values().filter(|from| **from > now).min().copied();
        self.consul.diff.held_until().into_iter().chain(next_empty).min()
    }

    fn read(&mut self, question: &str, sender: &ChangeSender) {
        self.failing.remove(question);
        if self.failing.is_empty() {
            sender.health().mark_reachable();
        }
    }

    fn unread(&mut self, question: Str, reason: String, sender: &ChangeSender) {
        sender.health().mark_unreachable(reason);
        *self.failing.entry(question).or_default() += 1;
    }

    async fn send(&mut self, sender: &ChangeSender) -> Result<(), SourceError> {
        let mut problems: Vec<Problem> = self.consul.problems.values().cloned().collect();
        if self.consul.is_synced {
            return self.consul.diff.send(sender, problems).await;
        }
        // One service that cannot be read does not hold back all others, if others can be read at all.
        let can_go = |name: &Str| self.failing.get(name).is_some_and(|tries| *tries >= TRIES);
        let some_were_read = self.awaited.len() < self.names.len() || self.names.is_empty();
        if !self.has_names || !some_were_read || !self.awaited.iter().all(can_go) {
            return Ok(());
        }
        self.consul.is_synced = true;
        let unread = self.awaited.iter().map(|name| {
            Problem::error(
                Subject::registry_service(Registry::Consul, name.clone()),
                "it could not be read at the start: it is left out until it can",
            )
        });
        problems.extend(unread);
        self.consul.diff.send_synced(sender, problems).await
    }
}

async fn watch_names(agents: Arc<Agents>, events: mpsc::Sender<CatalogEvent>, options: ConsulOptions) {
    let (mut progress, mut backoff, mut poll) =
        (IndexProgress::default(), Backoff::default(), PollInterval::new(options.interval.0));
    let mut there = BTreeSet::new();
    loop {
        poll.ready().await;
        let question = CatalogQuery { path: NAMES, parameters: "", index: progress.index };
        let event = match agents
            .ask_whole(question, &mut there, |names: &CatalogServices| names.keys().cloned().collect())
            .await
        {
            Ok(answer) => {
                backoff.reset();
                match progress.step(&answer) {
                    IndexStep::Anew => continue,
                    IndexStep::Same => CatalogEvent::Same(NAMES.into()),
                    IndexStep::New => CatalogEvent::Services(answer),
                }
            }
            Err(reason) => {
                progress = IndexProgress::default();
                let told = events.send(CatalogEvent::Unread(NAMES.into(), reason)).await;
                backoff.wait().await;
                if told.is_err() { return } else { continue }
            }
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
}

/// The path of one service's instances, and the parameters of the question.
fn instances_of(name: &str, options: &ConsulOptions) -> (String, String) {
    let path = format!("/v1/health/service/{}", agents::escaped(name));
    let filter =
        if options.filter.is_empty() { String::new() } else { format!("&filter={}", agents::escaped(&options.filter)) };
    (path, filter)
}
