//! The last published state of a registry. Adapters put in what they read, and only differences are sent. A sudden
//! loss of most endpoints is held back, because it is more likely a fault of the registry than intended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::change::Change;
use model::endpoint::Endpoint;
use model::names::{ServiceKey, Str};
use model::problem::{Problem, ProblemCode, Subject};
use model::service::Service;
use tokio::time::Instant;

use crate::source::{ChangeSender, SourceError};

/// A service as the registry has it now. Unhealthy endpoints are included with their health: a service whose endpoints
/// all fail differs from one without endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceListing {
    pub service: Arc<Service>,
    pub endpoints: Arc<[Endpoint]>,
}

/// When the loss of most endpoints of a registry is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MassLossGuard {
    /// A loss of this share of all endpoints at once is held back; 0 disables the guard.
    pub lost_percent: u8,
    /// Registries with fewer endpoints may lose them all.
    pub at_least: usize,
    /// A loss that lasts this long is published.
    pub hold_for: Duration,
}

impl Default for MassLossGuard {
    fn default() -> MassLossGuard {
        MassLossGuard { lost_percent: 90, at_least: 10, hold_for: Duration::from_secs(60) }
    }
}

/// Services plus endpoints that one registry may have, at some hundred bytes each. Services beyond it are left out.
pub(crate) const MOST_HELD: usize = 1_000_000;

/// The services of one registry by their name there.
#[derive(Debug)]
pub struct RegistryDiff {
    guard: MassLossGuard,
    /// Limit of services plus endpoints.
    limit: usize,
    /// Services whose current state exceeds the limit.
    excess: BTreeSet<Str>,
    listed: BTreeMap<Str, ServiceListing>,
    /// Names in the registry that map to one host. Of several, the first is published.
    by_host: BTreeMap<ServiceKey, BTreeSet<Str>>,
    endpoints: usize,
    pending: Vec<Change>,
    /// Since when a loss is held back, and the problem that reports it.
    held: Option<(Instant, Problem)>,
    problems: Vec<Problem>,
    is_synced: bool,
}

impl RegistryDiff {
    pub fn new(guard: MassLossGuard) -> RegistryDiff {
        RegistryDiff {
            guard,
            limit: MOST_HELD,
            excess: BTreeSet::new(),
            listed: BTreeMap::new(),
            by_host: BTreeMap::new(),
            endpoints: 0,
            pending: Vec::new(),
            held: None,
            problems: Vec::new(),
            is_synced: false,
        }
    }

    /// Names of all services.
    pub fn names(&self) -> impl Iterator<Item = &Str> {
        self.listed.keys()
    }

    pub fn get(&self, name: &str) -> Option<&ServiceListing> {
        self.listed.get(name)
    }

    /// Adds or changes a service. `None` removes it, as for one that cannot be published.
    pub fn put(&mut self, name: &Str, listing: Option<ServiceListing>) {
        if !self.fits(name, listing.as_ref()) {
            self.excess.insert(name.clone());
            return;
        }
        self.excess.remove(name);
        if self.listed.get(name) == listing.as_ref() {
            return;
        }
        let before = self.listed.get(name).map(|listing| listing.service.key());
        let after = listing.as_ref().map(|listing| listing.service.key());
        let keys: BTreeSet<ServiceKey> = before.iter().chain(&after).cloned().collect();
        let published: Vec<_> = keys.into_iter().map(|key| (self.published(&key).cloned(), key)).collect();
        self.store(name, before, listing);
        for (before, key) in published {
            let after = self.published(&key).cloned();
            difference(&key, before.as_ref(), after.as_ref(), &mut self.pending);
        }
    }

    /// Replaces all services. Returns false where the loss is held back and nothing changed.
    pub fn replace(&mut self, all: BTreeMap<Str, ServiceListing>, now: Instant) -> bool {
        let left = all.values().map(|listing| listing.endpoints.len()).sum();
        if !self.allows_loss(left, now) {
            return false;
        }
        self.excess.retain(|name| all.contains_key(name));
        let gone: Vec<Str> = self.listed.keys().filter(|name| !all.contains_key(*name)).cloned().collect();
        for name in gone {
            self.put(&name, None);
        }
        for (name, listing) in all {
            self.put(&name, Some(listing));
        }
        true
    }

    /// Removes the services that `names` lacks. Returns false where the loss is held back and nothing changed.
    pub fn retain(&mut self, names: &BTreeSet<Str>, now: Instant) -> bool {
        let kept = self.listed.iter().filter(|(name, _)| names.contains(*name));
        let left = kept.map(|(_, listing)| listing.endpoints.len()).sum();
        if !self.allows_loss(left, now) {
            return false;
        }
        self.excess.retain(|name| names.contains(name));
        let gone: Vec<Str> = self.listed.keys().filter(|name| !names.contains(*name)).cloned().collect();
        for name in gone {
            self.put(&name, None);
        }
        true
    }

    /// Adds a change of another kind, to be sent in the same batch as the services that it belongs to.
    pub fn add_change(&mut self, change: Change) {
        self.pending.push(change);
    }

    /// When a loss that is held back will be published.
    pub fn held_until(&self) -> Option<Instant> {
        self.held.as_ref().map(|(since, _)| *since + self.guard.hold_for)
    }

    /// Sends the differences since the last call, and the problems of the adapter and of the services.
    pub async fn send(&mut self, sender: &ChangeSender, problems: Vec<Problem>) -> Result<(), SourceError> {
        self.set_problems(problems);
        sender.health().set_size(self.by_host.len(), self.endpoints);
        sender.send(std::mem::take(&mut self.pending)).await
    }

    /// As `send`, and marks the source as in sync at the first call.
    pub async fn send_synced(&mut self, sender: &ChangeSender, problems: Vec<Problem>) -> Result<(), SourceError> {
        if !std::mem::replace(&mut self.is_synced, true) {
            self.set_problems(problems.clone());
            self.pending.push(Change::Synced);
        }
        self.send(sender, problems).await
    }

    fn set_problems(&mut self, mut problems: Vec<Problem>) {
        problems.extend(self.held.iter().map(|(_, problem)| problem.clone()));
        problems.extend(self.too_many());
        problems.extend(self.by_host.iter().filter(|(_, names)| names.len() > 1).map(|(key, names)| {
            let names: Vec<&str> = names.iter().map(|name| &**name).collect();
            let message = format!("{} all have this host name: only {} is used", names.join(", "), names[0]);
            Problem::error(key.clone(), message)
        }));
        if problems != self.problems {
            self.problems = problems.clone();
            self.pending.push(Change::Problems(problems));
        }
    }

    fn fits(&self, name: &Str, listing: Option<&ServiceListing>) -> bool {
        let Some(listing) = listing else { return true };
        let size = |listing: &ServiceListing| listing.endpoints.len() + 1;
        let others = self.listed.len() + self.endpoints - self.listed.get(name).map_or(0, size);
        others + size(listing) <= self.limit
    }

    /// The problem that reports services beyond the limit.
    fn too_many(&self) -> Option<Problem> {
        let first = self.excess.first()?;
        let message = format!(
            "more than {} services and endpoints: {} services, such as {first}, are left out or not updated",
            self.limit,
            self.excess.len(),
        );
        Some(Problem::error(Subject::Source("registry".into()), message))
    }

    fn published(&self, key: &ServiceKey) -> Option<&ServiceListing> {
        self.listed.get(self.by_host.get(key)?.first()?)
    }

    fn store(&mut self, name: &Str, before: Option<ServiceKey>, listing: Option<ServiceListing>) {
        if let Some(key) = before {
            let of_key = self.by_host.entry(key.clone()).or_default();
            of_key.remove(name);
            if of_key.is_empty() {
                self.by_host.remove(&key);
            }
        }
        let removed = match listing {
            Some(listing) => {
                self.by_host.entry(listing.service.key()).or_default().insert(name.clone());
                self.endpoints += listing.endpoints.len();
                self.listed.insert(name.clone(), listing)
            }
            None => self.listed.remove(name),
        };
        self.endpoints -= removed.map_or(0, |listing| listing.endpoints.len());
    }

    fn allows_loss(&mut self, left: usize, now: Instant) -> bool {
        let MassLossGuard { lost_percent, at_least, hold_for } = self.guard;
        let lost = self.endpoints.saturating_sub(left);
        let is_sudden = lost_percent > 0
            && self.endpoints >= at_least.max(1)
            && lost * 100 >= usize::from(lost_percent) * self.endpoints;
        if !is_sudden {
            self.held = None;
            return true;
        }
        let since = self.held.as_ref().map_or(now, |(since, _)| *since);
        if now.duration_since(since) >= hold_for {
            self.held = None;
            return true;
        }
        let message = format!(
            "{lost} of {} endpoints vanished at once: they are kept unless the loss lasts {hold_for:?}",
            self.endpoints
        );
        let problem = Problem::warning(Subject::Source("registry".into()), message).coded(ProblemCode::HeldLoss);
        self.held = Some((since, problem));
        false
    }
}

fn difference(
    key: &ServiceKey,
    before: Option<&ServiceListing>,
    after: Option<&ServiceListing>,
    changes: &mut Vec<Change>,
) {
    match (before, after) {
        (None, None) => {}
        (Some(_), None) => {
            changes.push(Change::Endpoints(key.clone(), Vec::new()));
            changes.push(Change::ServiceDeleted(key.clone()));
        }
        (before, Some(after)) => {
            if before.is_none_or(|before| before.service != after.service) {
                changes.push(Change::ServiceApplied(after.service.clone()));
            }
            if before.is_none_or(|before| before.endpoints != after.endpoints) {
                changes.push(Change::Endpoints(key.clone(), after.endpoints.to_vec()));
            }
        }
    }
}

#[cfg(test)]
mod tests;
