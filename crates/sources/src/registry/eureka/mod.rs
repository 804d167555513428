//! The Eureka registry: the whole list once, then what changed, checked by the hash code that comes with it.
//! Peers copy each other slowly and start empty, so what a new acquaintance does not know is kept for a lease.

mod mapping;
mod options;
mod peers;
mod schema;

pub use options::{EurekaOptions, ServicePer};

use std::collections::{BTreeMap, BTreeSet};

use model::change::SourceId;
use model::names::ClusterId;
use tokio::time::Instant;
use tracing::debug;

use crate::backoff::{Backoff, jittered};
use crate::registry::diff::{MassLossGuard, RegistryDiff};
use crate::source::{ChangeSender, Source, SourceError};
use peers::Peers;
use schema::{Applications, EurekaInstance, hash_code};

/// An instance by application and id.
type InstanceKey = (String, String);
type InstanceMap = BTreeMap<InstanceKey, EurekaInstance>;

/// The registry of one Eureka and its peers.
#[derive(Debug)]
pub struct EurekaRegistry {
    id: SourceId,
    options: EurekaOptions,
    cluster: ClusterId,
    diff: RegistryDiff,
    instances: InstanceMap,
    /// Instances that the peer does not list but another did, or the same before it failed.
    unlisted: BTreeSet<InstanceKey>,
    /// Until when those are kept.
    lenient_until: Option<Instant>,
    /// Something changed that was not published.
    is_changed: bool,
    /// A delta changed something since the whole list was read.
    is_unchecked: bool,
    /// When the whole list may be read again to check deltas.
    recheck_from: Instant,
}

/// The time between two checks is at least this many times what a whole list takes: checks must not be most of what the
/// server does.
const RECHECK_COST: u32 = 20;

/// An instance before a delta: its key, what it was, and whether the peer did not list it.
type DeltaUndo = Vec<(InstanceKey, Option<EurekaInstance>, bool)>;

/// How the next answer is got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextFetch {
    All,
    Delta,
}

impl EurekaRegistry {
    pub fn new(id: SourceId, options: EurekaOptions, cluster: ClusterId, guard: MassLossGuard) -> EurekaRegistry {
        let diff = RegistryDiff::new(guard);
        EurekaRegistry {
            id,
            options,
            cluster,
            diff,
            instances: InstanceMap::new(),
            unlisted: BTreeSet::new(),
            lenient_until: None,
            is_changed: true,
            is_unchecked: false,
            recheck_from: Instant::now(),
        }
    }

    /// Asks the current peer, then the others in turn. After a failure the whole list is asked for.
    async fn refresh(&mut self, peers: &mut Peers, next: NextFetch) -> Result<NextFetch, String> {
        let mut failures = Vec::new();
        for attempt in 0..peers.len() {
            let next = if attempt == 0 { next } else { NextFetch::All };
            match self.ask(peers, next).await {
                Ok(next) => return Ok(next),
                Err(reason) => failures.push(reason),
            }
            peers.turn();
            self.be_lenient();
        }
        Err(failures.join("; "))
    }

    async fn ask(&mut self, peers: &mut Peers, next: NextFetch) -> Result<NextFetch, String> {
        let delta = if next == NextFetch::Delta { peers.delta().await?.map(EurekaDelta::of) } else { None };
        let is_recheck = self.is_unchecked && Instant::now() >= self.recheck_from;
        if let Some(delta) = &delta {
            let (leads_to_server, _) = self.apply(delta);
            if leads_to_server && !is_recheck {
                return Ok(NextFetch::Delta);
            }
            debug!(registry = &*self.id.0, leads_to_server, "reading the whole list");
        }
        let begun = Instant::now();
        let all = peers.all().await?;
        let pause = self.options.recheck.0.max(begun.elapsed() * RECHECK_COST);
        (self.is_unchecked, self.recheck_from) = (false, Instant::now() + pause);
        self.replace(all);
        // The list may be older than the delta, or the delta older than the list: the server caches both.
        if let Some(delta) = &delta {
            let (leads_to_server, undo) = self.apply(delta);
            if !leads_to_server {
                self.undo(undo);
            }
        }
        Ok(NextFetch::Delta)
    }

    /// Whoever answers next may not know everything yet.
    fn be_lenient(&mut self) {
        if !self.instances.is_empty() {
            self.lenient_until = Some(Instant::now() + self.options.lease.0);
        }
    }

    /// Lets go of what nobody listed for a lease.
    fn end_leniency(&mut self) {
        if self.lenient_until.is_none_or(|until| until > Instant::now()) {
            return;
        }
        self.lenient_until = None;
        for key in std::mem::take(&mut self.unlisted) {
            self.is_changed |= self.instances.remove(&key).is_some();
        }
    }

    fn replace(&mut self, all: Applications) {
        // Whole lists tell the last action too, which is no part of an instance.
        let listed = instances(all).map(|instance| EurekaInstance { action_type: String::new(), ..instance });
        let mut fresh: InstanceMap = listed.map(|instance| (key(&instance), instance)).collect();
        self.unlisted.clear();
        if self.lenient_until.is_some() {
            self.unlisted.extend(self.instances.keys().filter(|key| !fresh.contains_key(*key)).cloned());
            let kept = self.unlisted.iter().filter_map(|key| self.instances.remove_entry(key));
            fresh.extend(kept.collect::<Vec<_>>());
        }
        self.is_changed |= fresh != self.instances || !self.unlisted.is_empty();
        self.instances = fresh;
    }

    /// Takes in what changed. The same change may come many times. False where the result is not the server's.
    fn apply(&mut self, delta: &EurekaDelta) -> (bool, DeltaUndo) {
        let mut undo = DeltaUndo::new();
        for InstanceEdit { key, is_deleted, instance } in &delta.edits {
            let was_unlisted = self.unlisted.remove(key);
            let now = (!is_deleted).then_some(instance);
            if self.instances.get(key) == now {
                continue;
            }
            let before = match now {
                Some(instance) => self.instances.insert(key.clone(), instance.clone()),
                None => self.instances.remove(key),
            };
            self.is_unchecked = true;
            undo.push((key.clone(), before, was_unlisted));
        }
        self.is_changed |= self.is_unchecked;
        let listed = self.instances.iter().filter(|(key, _)| !self.unlisted.contains(*key));
        (hash_code(listed.map(|(_, instance)| instance)) == delta.hash_code, undo)
    }

    fn undo(&mut self, undo: DeltaUndo) {
        for (key, before, was_unlisted) in undo.into_iter().rev() {
            if was_unlisted {
                self.unlisted.insert(key.clone());
            }
            match before {
                Some(instance) => _ = self.instances.insert(key, instance),
                None => _ = self.instances.remove(&key),
            }
        }
    }

    async fn publish(&mut self, sender: &ChangeSender) -> Result<(), SourceError> {
        self.end_leniency();
        // A loss that is held back is looked at again until it is believed or gone.
        if !std::mem::take(&mut self.is_changed) && self.diff.held_until().is_none() {
            return Ok(());
        }
        let (listed, problems) = mapping::listings(self.instances.values(), &self.options, &self.cluster);
        self.diff.replace(listed, Instant::now());
        self.diff.send_synced(sender, problems).await
    }
}

/// What changed lately, and the hash code of the state that it leads to.
struct EurekaDelta {
    hash_code: String,
    edits: Vec<InstanceEdit>,
}

struct InstanceEdit {
    key: InstanceKey,
    is_deleted: bool,
    instance: EurekaInstance,
}

impl EurekaDelta {
    fn of(applications: Applications) -> EurekaDelta {
        let hash_code = applications.hash_code.clone();
        let edits = instances(applications).map(|mut instance| {
            let is_deleted = std::mem::take(&mut instance.action_type) == "DELETED";
            InstanceEdit { key: key(&instance), is_deleted, instance }
        });
        EurekaDelta { hash_code, edits: edits.collect() }
    }
}

fn instances(applications: Applications) -> impl Iterator<Item = EurekaInstance> {
    applications.application.into_iter().flat_map(|application| {
        let name = application.name;
        application.instance.into_iter().map(move |mut instance| {
            if instance.app.is_empty() {
                instance.app.clone_from(&name);
            }
            instance
        })
    })
}

fn key(instance: &EurekaInstance) -> InstanceKey {
    (instance.app.to_ascii_uppercase(), instance.id().to_owned())
}

impl Source for EurekaRegistry {
    fn id(&self) -> SourceId {
        self.id.clone()
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        let health = sender.health().clone();
        let mut peers = Peers::new(&self.options, health.clone()).map_err(|e| SourceError::Failed(e.to_string()))?;
        let (mut next, mut backoff) = (NextFetch::All, Backoff::default());
        loop {
            let begun = Instant::now();
            match self.refresh(&mut peers, next).await {
                Ok(following) => {
                    next = following;
                    backoff.reset();
                    health.mark_reachable();
                    self.publish(&sender).await?;
                    // Answers that take longer than the interval must not be all that the server does.
                    tokio::time::sleep(jittered(self.options.interval.0.max(begun.elapsed()))).await;
                }
                Err(reason) => {
                    next = NextFetch::All;
                    health.mark_unreachable(reason);
                    backoff.wait().await;
                }
            }
        }
    }
}
