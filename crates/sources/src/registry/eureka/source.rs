//! The source: applies deltas to the last full registry. Peers replicate slowly and start empty, so instances that a new
//! or restarted peer does not list are kept for the duration of a lease.

use std::collections::{BTreeMap, BTreeSet};

use model::change::SourceId;
use model::names::ClusterId;
use tokio::time::Instant;
use tracing::debug;

use super::error::EurekaError;
use super::mapping;
use super::options::EurekaOptions;
use super::peers::Peers;
use super::schema::{Applications, EurekaInstance, hash_code};
use crate::backoff::{Backoff, jittered};
use crate::registry::adapter::SourcePlace;
use crate::registry::diff::RegistryDiff;
use crate::source::{ChangeSender, Source, SourceError};

/// An instance by application and id.
type InstanceKey = (String, String);
type InstanceMap = BTreeMap<InstanceKey, EurekaInstance>;

/// The source of one Eureka with its peers.
#[derive(Debug)]
pub struct EurekaRegistry {
    id: SourceId,
    options: EurekaOptions,
    cluster: ClusterId,
    diff: RegistryDiff,
    instances: InstanceMap,
    /// Instances that the current peer does not list, kept from another peer or from before its failure.
    unlisted: BTreeSet<InstanceKey>,
    /// Until when `unlisted` instances are kept.
    lenient_until: Option<Instant>,
    /// Whether there are unpublished changes.
    is_changed: bool,
    /// Whether a delta was applied since the full registry was read.
    is_unchecked: bool,
    /// When the full registry may be read again to verify deltas.
    recheck_from: Instant,
}

/// The interval between two verifications is at least this many times the duration of a full read, to limit the load on
/// the server.
const RECHECK_COST: u32 = 20;

/// Instances before a delta: key, previous value, and whether it was unlisted.
type DeltaUndo = Vec<(InstanceKey, Option<EurekaInstance>, bool)>;

/// What is fetched next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextFetch {
    All,
    Delta,
}

impl EurekaRegistry {
    pub fn new(options: EurekaOptions, place: SourcePlace) -> EurekaRegistry {
        let SourcePlace { id, cluster, guard } = place;
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

    /// Reads the current peer, then the others in turn. After a failure the full registry is read.
    async fn refresh(&mut self, peers: &mut Peers, next: NextFetch) -> Result<NextFetch, EurekaError> {
        let mut failures = Vec::new();
        for attempt in 0..peers.len() {
            let next = if attempt == 0 { next } else { NextFetch::All };
            match self.fetch(peers, next).await {
                Ok(next) => return Ok(next),
                Err(error) => failures.push(error),
            }
            peers.switch();
            self.start_leniency();
        }
        Err(EurekaError::AllPeers(failures))
    }

    async fn fetch(&mut self, peers: &mut Peers, next: NextFetch) -> Result<NextFetch, EurekaError> {
        let delta = if next == NextFetch::Delta { peers.delta().await?.map(EurekaDelta::new) } else { None };
        let is_recheck = self.is_unchecked && Instant::now() >= self.recheck_from;
        if let Some(delta) = &delta {
            let (is_verified, _) = self.apply(delta);
            if is_verified && !is_recheck {
                return Ok(NextFetch::Delta);
            }
            debug!(registry = &*self.id.0, is_verified, "reading the full registry");
        }
        let started = Instant::now();
        let all = peers.all().await?;
        let pause = self.options.recheck.0.max(started.elapsed() * RECHECK_COST);
        (self.is_unchecked, self.recheck_from) = (false, Instant::now() + pause);
        self.replace(all);
        // The server caches both, so either the list or the delta may be the older one.
        if let Some(delta) = &delta {
            let (is_verified, undo) = self.apply(delta);
            if !is_verified {
                self.undo(undo);
            }
        }
        Ok(NextFetch::Delta)
    }

    /// Keeps unlisted instances for a lease, because the next peer may not list all of them yet.
    fn start_leniency(&mut self) {
        if !self.instances.is_empty() {
            self.lenient_until = Some(Instant::now() + self.options.lease.0);
        }
    }

    /// Removes unlisted instances when their lease is over.
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
        // Full lists contain the last action too, which is no part of an instance.
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

    /// Applies a delta, which may repeat earlier changes. Returns whether the hash code of the result is the server's.
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
        // A loss that is held back is re-evaluated until it is published or over.
        if !std::mem::take(&mut self.is_changed) && self.diff.held_until().is_none() {
            return Ok(());
        }
        let (listed, problems) = mapping::listings(self.instances.values(), &self.options, &self.cluster);
        self.diff.replace(listed, Instant::now());
        self.diff.send_synced(sender, problems).await
    }
}

/// Recent changes, and the hash code of the registry after them.
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
    fn new(applications: Applications) -> EurekaDelta {
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
            let started = Instant::now();
            match self.refresh(&mut peers, next).await {
                Ok(following) => {
                    next = following;
                    backoff.reset();
                    health.mark_reachable();
                    self.publish(&sender).await?;
                    // Pauses at least as long as the fetch took, to limit the load on a slow server.
                    tokio::time::sleep(jittered(self.options.interval.0.max(started.elapsed()))).await;
                }
                Err(error) => {
                    next = NextFetch::All;
                    health.mark_unreachable(error.to_string());
                    backoff.wait().await;
                }
            }
        }
    }
}
