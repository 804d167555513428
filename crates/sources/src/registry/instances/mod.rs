//! Instances of registries that store one key for each of them (etcd, ZooKeeper): the last valid value of each key, the
//! services that they make up, and when to publish them. `mapping` makes a service; `dubbo` reads Dubbo's URLs.

pub(super) mod dubbo;
pub(super) mod mapping;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::names::Str;
use model::problem::{Problem, Subject};
use tokio::time::Instant;

use self::mapping::MappingOptions;
use crate::registry::diff::{MOST_HELD, MassLossGuard, RegistryDiff, ServiceListing};
use crate::source::{ChangeSender, SourceError};

/// The shortest time between two publications: many keys usually change together.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(50);
/// The interval is at least this many times the duration of a publication.
const PUBLISH_COST: u32 = 4;
/// Malformed keys that are reported one by one.
const MOST_REPORTED: usize = 100;

/// One instance of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RegisteredInstance {
    /// The name of its service in the registry.
    pub(super) service: Str,
    pub(super) id: String,
    /// An IP address or a host name.
    pub(super) address: String,
    pub(super) port: u16,
    /// The protocol as the registry names it; empty where it is not known.
    pub(super) protocol: String,
    /// 0 where none is set.
    pub(super) weight: u32,
    /// Whether it is registered but takes no requests.
    pub(super) is_disabled: bool,
    pub(super) metadata: BTreeMap<String, String>,
}

/// Why the value of a key is not used.
pub(super) type MalformedValue = String;

/// All instances of one registry.
#[derive(Debug)]
pub(super) struct InstanceTable {
    options: MappingOptions,
    diff: RegistryDiff,
    keys: BTreeMap<Box<str>, KeyState>,
    by_service: BTreeMap<Str, BTreeSet<Box<str>>>,
    /// Services whose instances changed since the last publication.
    changed: BTreeSet<Str>,
    is_changed: bool,
    listings: BTreeMap<Str, ServiceListing>,
    /// By service.
    problems: BTreeMap<Str, Problem>,
    /// The number of the current complete read.
    pass: u64,
    /// Keys of the current pass that are over the limit.
    excess: usize,
    limit: usize,
    next_publication: Instant,
}

#[derive(Debug)]
struct KeyState {
    /// The last complete read that found the key.
    pass: u64,
    /// All of one service.
    instances: Vec<RegisteredInstance>,
    error: Option<MalformedValue>,
}

impl InstanceTable {
    pub(super) fn new(options: MappingOptions, guard: MassLossGuard) -> InstanceTable {
        InstanceTable {
            options,
            diff: RegistryDiff::new(guard),
            keys: BTreeMap::new(),
            by_service: BTreeMap::new(),
            changed: BTreeSet::new(),
            is_changed: true,
            listings: BTreeMap::new(),
            problems: BTreeMap::new(),
            pass: 0,
            excess: 0,
            limit: MOST_HELD,
            next_publication: Instant::now(),
        }
    }

    /// Starts a complete read of the registry.
    pub(super) fn begin_read(&mut self) {
        self.pass += 1;
        self.excess = 0;
    }

    /// Removes the keys that the complete read did not find.
    pub(super) fn end_read(&mut self) {
        let gone = self.keys.iter().filter(|(_, state)| state.pass != self.pass);
        let gone: Vec<Box<str>> = gone.map(|(key, _)| key.clone()).collect();
        for key in gone {
            self.remove(&key);
        }
        self.is_changed = true;
    }

    /// Sets the instances of a key. A malformed value keeps the last valid one.
    pub(super) fn put(&mut self, key: &str, value: Result<Vec<RegisteredInstance>, MalformedValue>) {
        if !self.keys.contains_key(key) && self.keys.len() >= self.limit {
            (self.excess, self.is_changed) = (self.excess + 1, true);
            return;
        }
        let pass = self.pass;
        let state = self.keys.entry(key.into()).or_insert(KeyState { pass, instances: Vec::new(), error: None });
        state.pass = pass;
        let (instances, error) = match value {
            Ok(instances) => (instances, None),
            Err(reason) => (state.instances.clone(), Some(reason)),
        };
        if state.instances == instances && state.error == error {
            return;
        }
        state.error = error;
        let before = std::mem::replace(&mut state.instances, instances);
        let after = state.instances.first().map(|instance| instance.service.clone());
        self.moved(key, before.first().map(|instance| instance.service.clone()), after);
    }

    pub(super) fn remove(&mut self, key: &str) {
        let Some(state) = self.keys.remove(key) else { return };
        self.moved(key, state.instances.first().map(|instance| instance.service.clone()), None);
    }

    /// Keys that begin with this text.
    pub(super) fn keys_below(&self, prefix: &str) -> Vec<Box<str>> {
        let from = self.keys.range::<str, _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded));
        from.map(|(key, _)| key).take_while(|key| key.starts_with(prefix)).cloned().collect()
    }

    fn moved(&mut self, key: &str, before: Option<Str>, after: Option<Str>) {
        self.is_changed = true;
        if let Some(service) = &before
            && let Some(keys) = self.by_service.get_mut(service)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.by_service.remove(service);
            }
        }
        if let Some(service) = &after {
            self.by_service.entry(service.clone()).or_default().insert(key.into());
        }
        self.changed.extend(before.into_iter().chain(after));
    }

    /// When `publish` is to be called; `None` if nothing waits.
    pub(super) fn due(&self) -> Option<Instant> {
        let held = self.diff.held_until();
        if self.is_changed { Some(self.next_publication) } else { held.map(|held| held.max(self.next_publication)) }
    }

    /// Sends the differences since the last call.
    pub(super) async fn publish(&mut self, sender: &ChangeSender) -> Result<(), SourceError> {
        let started = Instant::now();
        self.is_changed = false;
        self.map_changed();
        self.diff.replace(self.listings.clone(), started);
        let problems = self.all_problems();
        self.next_publication = Instant::now() + PUBLISH_INTERVAL.max(started.elapsed() * PUBLISH_COST);
        self.diff.send_synced(sender, problems).await
    }

    /// All services and problems as they would be published.
    pub(super) fn published(&mut self) -> (Vec<ServiceListing>, Vec<Problem>) {
        self.map_changed();
        (self.listings.values().cloned().collect(), self.all_problems())
    }

    fn map_changed(&mut self) {
        for service in std::mem::take(&mut self.changed) {
            self.map_service(service);
        }
    }

    fn map_service(&mut self, service: Str) {
        let keys = self.by_service.get(&service).into_iter().flatten();
        let instances: Vec<&RegisteredInstance> =
            keys.filter_map(|key| self.keys.get(key)).flat_map(|state| &state.instances).collect();
        let (listing, problem) = match instances.is_empty() {
            true => (None, None),
            false => mapping::listing(&service, &instances, &self.options),
        };
        match problem {
            Some(problem) => _ = self.problems.insert(service.clone(), problem),
            None => _ = self.problems.remove(&service),
        }
        match listing {
            Some(listing) => _ = self.listings.insert(service, listing),
            None => _ = self.listings.remove(&service),
        }
    }

    fn all_problems(&self) -> Vec<Problem> {
        let registry = self.options.registry;
        let source = || Subject::Source(registry.as_str().into());
        let malformed = || self.keys.iter().filter_map(|(key, state)| Some((key, state, state.error.as_ref()?)));
        let mut problems: Vec<Problem> = self.problems.values().cloned().collect();
        problems.extend(malformed().take(MOST_REPORTED).map(|(key, state, error)| {
            let kept = if state.instances.is_empty() { "the key is ignored" } else { "keeping its last valid value" };
            Problem::error(source(), format!("could not use the value of {key}: {error}; {kept}"))
        }));
        let unreported = malformed().count().saturating_sub(MOST_REPORTED);
        if unreported > 0 {
            problems.push(Problem::error(source(), format!("{unreported} more keys have values that cannot be used")));
        }
        if self.excess > 0 {
            let message = format!("more than {} keys: {} are ignored", self.limit, self.excess);
            problems.push(Problem::error(source(), message));
        }
        problems
    }
}

#[cfg(test)]
mod tests;
