//! The Consul registry. One question waits for the list of names; each service is watched by a question of its
//! own, or, when there are more services than an agent takes connections, through lists of all (`lists`).
//! What cannot be read is never taken for empty.

mod agents;
mod each;
mod lists;
mod mapping;
mod options;
mod wire;

pub use options::{Options, Profile};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::change::SourceId;
use model::names::{ClusterId, Str};
use model::problem::Problem;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::registry::ledger::{Ledger, Protection};
use crate::registry::pace::{Pace, Retry};
use crate::source::{ChangeSender, Source, SourceError};
use agents::{Agents, Answer, Progress, Question, Step};
use each::Each;
use lists::Lists;
use wire::{Instances, Names};

const NAMES: &str = "/v1/catalog/services";
/// A service that cannot be read this often while others can does not hold back the start.
const TRIES: u32 = 5;

/// An answer without instances is believed after this time. When services go, the list of names says so too,
/// and says it of all of them at once.
const EMPTY_FOR: Duration = Duration::from_secs(1);

/// What a watcher saw.
#[derive(Debug)]
enum Seen {
    Names(Answer<Names>),
    Instances(Str, Answer<Instances>),
    /// The question was answered and nothing changed.
    Same(Str),
    /// The question, and why there is no answer that counts.
    Unread(Str, String),
}

/// The registry of one Consul.
#[derive(Debug)]
pub struct Consul {
    id: SourceId,
    options: Options,
    cluster: ClusterId,
    ledger: Ledger,
    /// What is wrong with single services.
    problems: BTreeMap<Str, Problem>,
    is_synced: bool,
}

impl Consul {
    pub fn new(id: SourceId, options: Options, cluster: ClusterId, protection: Protection) -> Consul {
        let ledger = Ledger::new(protection);
        Consul { id, options, cluster, ledger, problems: BTreeMap::new(), is_synced: false }
    }
}

impl Source for Consul {
    fn id(&self) -> SourceId {
        self.id.clone()
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        let agents =
            Agents::new(&self.options, sender.health().clone()).map_err(|e| SourceError::Failed(e.to_string()))?;
        let (events, mut seen) = mpsc::channel(256);
        let mut run = Run::new(self, Arc::new(agents), events);
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
enum Watching {
    Each(Each),
    Lists(Lists),
}

/// One life of the source; what outlasts it is in `consul`.
struct Run<'a> {
    consul: &'a mut Consul,
    agents: Arc<Agents>,
    events: mpsc::Sender<Seen>,
    watching: Watching,
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

impl<'a> Run<'a> {
    fn new(consul: &'a mut Consul, agents: Arc<Agents>, events: mpsc::Sender<Seen>) -> Run<'a> {
        let mut tasks = JoinSet::new();
        tasks.spawn(watch_names(agents.clone(), events.clone(), consul.options.clone()));
        Run {
            consul,
            agents,
            events,
            watching: Watching::Each(Each::default()),
            tasks,
            names: BTreeSet::new(),
            empty: BTreeMap::new(),
            awaited: BTreeSet::new(),
            has_names: false,
            was_filtered: None,
            failing: BTreeMap::new(),
        }
    }

    fn take(&mut self, event: Seen, sender: &ChangeSender) {
        match event {
            Seen::Names(answer) => {
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
            Seen::Instances(name, answer) => {
                if !self.names.contains(&name) {
                    return;
                }
                if self.was_filtered == Some(false) && answer.is_filtered {
                    let reason = format!("the token may not see all instances of {name} any more");
                    return self.unread(name, reason, sender);
                }
                self.read(&name, sender);
                self.awaited.remove(&name);
                if answer.value.0.is_empty() && self.consul.ledger.get(&name).is_some() {
                    self.empty.entry(name).or_insert_with(|| Instant::now() + EMPTY_FOR);
                    return;
                }
                self.empty.remove(&name);
                let Consul { options, cluster, ledger, problems, .. } = &mut *self.consul;
                let (listing, problem) = mapping::listing(&name, answer.value.0, options, cluster);
                match problem {
                    Some(problem) => _ = problems.insert(name.clone(), problem),
                    None => _ = problems.remove(&name),
                }
                ledger.put(&name, listing);
            }
            Seen::Same(question) => self.read(&question, sender),
            Seen::Unread(question, reason) => self.unread(question, reason, sender),
        }
    }

    fn selected(&self, names: &Names) -> BTreeSet<Str> {
        let tag = &self.consul.options.tag;
        let is_wanted = |(name, tags): &(&String, &Vec<String>)| {
            *name != mapping::OWN_SERVICE && (tag.is_empty() || tags.contains(tag))
        };
        names.iter().filter(is_wanted).map(|(name, _)| name.as_str().into()).collect()
    }

    /// Watches these services and no others.
    fn follow(&mut self, names: BTreeSet<Str>, answer: &Answer<Names>, sender: &ChangeSender) {
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
            Watching::Each(_) => self.names.len() > limit,
            Watching::Lists(_) => self.names.len() > limit * 4 / 5,
        };
        match (&mut self.watching, is_many) {
            (Watching::Lists(lists), true) => lists.follow(answer.value.clone(), &self.names),
            (Watching::Each(each), false) => each.follow(&self.names, &self.agents, &self.events, &self.consul.options),
            (_, true) => {
                let lists = Lists::start(self.agents.clone(), self.events.clone(), &self.consul.options);
                lists.follow(answer.value.clone(), &self.names);
                self.watching = Watching::Lists(lists);
            }
            (_, false) => {
                let mut each = Each::default();
                each.follow(&self.names, &self.agents, &self.events, &self.consul.options);
                self.watching = Watching::Each(each);
            }
        }
        sender.health().watches(1 + if is_many { 1 } else { self.names.len() });
    }

    /// Takes away what is not there any more.
    fn retain(&mut self) {
        let now = Instant::now();
        self.empty.retain(|name, _| self.names.contains(name));
        let is_there = |name: &&Str| self.empty.get(*name).is_none_or(|from| *from > now);
        let there: BTreeSet<Str> = self.names.iter().filter(is_there).cloned().collect();
        if self.consul.ledger.retain(&there, now) {
            self.empty.retain(|name, _| there.contains(name));
            self.consul.problems.retain(|name, _| there.contains(name));
        }
    }

    /// When to look again at what is missing: a loss that is held back, or the next service to be believed empty.
    fn reconsider(&self) -> Option<Instant> {
        let now = Instant::now();
        let next_empty = self.empty.values().filter(|from| **from > now).min().copied();
        self.consul.ledger.held_until().into_iter().chain(next_empty).min()
    }

    fn read(&mut self, question: &str, sender: &ChangeSender) {
        self.failing.remove(question);
        if self.failing.is_empty() {
            sender.health().regained();
        }
    }

    fn unread(&mut self, question: Str, reason: String, sender: &ChangeSender) {
        sender.health().lost(reason);
        *self.failing.entry(question).or_default() += 1;
    }

    async fn send(&mut self, sender: &ChangeSender) -> Result<(), SourceError> {
        let mut problems: Vec<Problem> = self.consul.problems.values().cloned().collect();
        if self.consul.is_synced {
            return self.consul.ledger.send(sender, problems).await;
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
                format!("Consul service {name}"),
                "it could not be read at the start: it is left out until it can",
            )
        });
        problems.extend(unread);
        self.consul.ledger.send_synced(sender, problems).await
    }
}

async fn watch_names(agents: Arc<Agents>, events: mpsc::Sender<Seen>, options: Options) {
    let (mut progress, mut retry, mut pace) = (Progress::default(), Retry::default(), Pace::new(options.interval.0));
    let mut there = BTreeSet::new();
    loop {
        pace.turn().await;
        let question = Question { path: NAMES, parameters: "", index: progress.index };
        let event = match agents.ask_whole(question, &mut there, |names: &Names| names.keys().cloned().collect()).await
        {
            Ok(answer) => {
                retry.succeeded();
                match progress.step(&answer) {
                    Step::Anew => continue,
                    Step::Same => Seen::Same(NAMES.into()),
                    Step::New => Seen::Names(answer),
                }
            }
            Err(reason) => {
                progress = Progress::default();
                let told = events.send(Seen::Unread(NAMES.into(), reason)).await;
                retry.wait().await;
                if told.is_err() { return } else { continue }
            }
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
}

/// The path of one service's instances, and the parameters of the question.
fn instances_of(name: &str, options: &Options) -> (String, String) {
    let path = format!("/v1/health/service/{}", agents::escaped(name));
    let filter =
        if options.filter.is_empty() { String::new() } else { format!("&filter={}", agents::escaped(&options.filter)) };
    (path, filter)
}
