//! What a registry has told so far: adapters say what they see, and only differences go out.
//! It also holds back what looks like an accident of the registry rather than a wish of its users.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::change::Change;
use model::endpoint::Endpoint;
use model::names::{ServiceKey, Str};
use model::problem::{Problem, Subject};
use model::service::Service;
use tokio::time::Instant;

use crate::source::{ChangeSender, SourceError};

/// One service as a registry has it now. Endpoints that are not well are listed too, with their health:
/// a service with none at all is another thing than one whose endpoints all fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceListing {
    pub service: Arc<Service>,
    pub endpoints: Arc<[Endpoint]>,
}

/// When the sudden loss of most of a registry is not believed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MassLossGuard {
    /// A loss of this share of all endpoints at one moment is held back; 0 for none ever.
    pub lost_percent: u8,
    /// Registries with fewer endpoints may lose them all.
    pub at_least: usize,
    /// A loss that lasts this long is believed.
    pub hold_for: Duration,
}

impl Default for MassLossGuard {
    fn default() -> MassLossGuard {
        MassLossGuard { lost_percent: 90, at_least: 10, hold_for: Duration::from_secs(60) }
    }
}

/// Services and endpoints that one registry may have, together: some hundred bytes each. A registry that invents more
/// costs what is beyond, and no other source notices.
pub(crate) const MOST_HELD: usize = 1_000_000;

/// Services by the name that they have in the registry.
#[derive(Debug)]
pub struct RegistryDiff {
    guard: MassLossGuard,
    /// Services and endpoints that may be listed, together.
    most: usize,
    /// Services that are not listed as they are now, because there would be too many.
    refused: BTreeSet<Str>,
    listed: BTreeMap<Str, ServiceListing>,
    /// Which of the registry's names stand for a host. More than one is a mistake; the first is told.
    claims: BTreeMap<ServiceKey, BTreeSet<Str>>,
    endpoints: usize,
    pending: Vec<Change>,
    /// Since when a loss is held back, and what was lost.
    held: Option<(Instant, Problem)>,
    problems: Vec<Problem>,
    is_synced: bool,
}

impl RegistryDiff {
    pub fn new(guard: MassLossGuard) -> RegistryDiff {
        RegistryDiff {
            guard,
            most: MOST_HELD,
            refused: BTreeSet::new(),
            listed: BTreeMap::new(),
            claims: BTreeMap::new(),
            endpoints: 0,
            pending: Vec::new(),
            held: None,
            problems: Vec::new(),
            is_synced: false,
        }
    }

    /// Names that are listed.
    pub fn names(&self) -> impl Iterator<Item = &Str> {
        self.listed.keys()
    }

    pub fn get(&self, name: &str) -> Option<&ServiceListing> {
        self.listed.get(name)
    }

    /// Lists a service, new or changed. `None` where the registry has it but it cannot be told.
    pub fn put(&mut self, name: &Str, listing: Option<ServiceListing>) {
        if !self.fits(name, listing.as_ref()) {
            self.refused.insert(name.clone());
            return;
        }
        self.refused.remove(name);
        if self.listed.get(name) == listing.as_ref() {
            return;
        }
        let before = self.listed.get(name).map(|listing| listing.service.key());
        let after = listing.as_ref().map(|listing| listing.service.key());
        let keys: BTreeSet<ServiceKey> = before.iter().chain(&after).cloned().collect();
        let told: Vec<_> = keys.into_iter().map(|key| (self.told(&key).cloned(), key)).collect();
        self.exchange(name, before, listing);
        for (before, key) in told {
            let after = self.told(&key).cloned();
            difference(&key, before.as_ref(), after.as_ref(), &mut self.pending);
        }
    }

    /// Takes the whole list of a registry: what is not in it is gone. False where the loss is held back.
    pub fn replace(&mut self, all: BTreeMap<Str, ServiceListing>, now: Instant) -> bool {
        let left = all.values().map(|listing| listing.endpoints.len()).sum();
        if !self.believes(left, now) {
            return false;
        }
        self.refused.retain(|name| all.contains_key(name));
        let gone: Vec<Str> = self.listed.keys().filter(|name| !all.contains_key(*name)).cloned().collect();
        for name in gone {
            self.put(&name, None);
        }
        for (name, listing) in all {
            self.put(&name, Some(listing));
        }
        true
    }

    /// Takes the whole list of names: what is not in it is gone. False where the loss is held back.
    pub fn retain(&mut self, names: &BTreeSet<Str>, now: Instant) -> bool {
        let kept = self.listed.iter().filter(|(name, _)| names.contains(*name));
        let left = kept.map(|(_, listing)| listing.endpoints.len()).sum();
        if !self.believes(left, now) {
            return false;
        }
        self.refused.retain(|name| names.contains(name));
        let gone: Vec<Str> = self.listed.keys().filter(|name| !names.contains(*name)).cloned().collect();
        for name in gone {
            self.put(&name, None);
        }
        true
    }

    /// Lets a change that is no service's go out with the services that belong to it.
    pub fn tell(&mut self, change: Change) {
        self.pending.push(change);
    }

    /// When a loss that is held back will be believed.
    pub fn held_until(&self) -> Option<Instant> {
        self.held.as_ref().map(|(since, _)| *since + self.guard.hold_for)
    }

    /// Sends what is new, with the problems of the adapter and of the list itself.
    pub async fn send(&mut self, sender: &ChangeSender, problems: Vec<Problem>) -> Result<(), SourceError> {
        self.note(problems);
        sender.health().set_size(self.claims.len(), self.endpoints);
        sender.send(std::mem::take(&mut self.pending)).await
    }

    /// As `send`, and tells that everything was told. Once is enough, whatever happens later.
    pub async fn send_synced(&mut self, sender: &ChangeSender, problems: Vec<Problem>) -> Result<(), SourceError> {
        if !std::mem::replace(&mut self.is_synced, true) {
            self.note(problems.clone());
            self.pending.push(Change::Synced);
        }
        self.send(sender, problems).await
    }

    fn note(&mut self, mut problems: Vec<Problem>) {
        problems.extend(self.held.iter().map(|(_, problem)| problem.clone()));
        problems.extend(self.too_many());
        problems.extend(self.claims.iter().filter(|(_, names)| names.len() > 1).map(|(key, names)| {
            let names: Vec<&str> = names.iter().map(|name| &**name).collect();
            let message = format!("{} all give this host: only {} is used", names.join(", "), names[0]);
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
        others + size(listing) <= self.most
    }

    /// What is wrong where there is more than fits in.
    fn too_many(&self) -> Option<Problem> {
        let first = self.refused.first()?;
        let message = format!(
            "has more than {} services and endpoints: {} services, such as {first}, are left out or kept as they were",
            self.most,
            self.refused.len(),
        );
        Some(Problem::error(Subject::Source("registry".into()), message))
    }

    fn told(&self, key: &ServiceKey) -> Option<&ServiceListing> {
        self.listed.get(self.claims.get(key)?.first()?)
    }

    fn exchange(&mut self, name: &Str, before: Option<ServiceKey>, listing: Option<ServiceListing>) {
        if let Some(key) = before {
            let of_key = self.claims.entry(key.clone()).or_default();
            of_key.remove(name);
            if of_key.is_empty() {
                self.claims.remove(&key);
            }
        }
        let removed = match listing {
            Some(listing) => {
                self.claims.entry(listing.service.key()).or_default().insert(name.clone());
                self.endpoints += listing.endpoints.len();
                self.listed.insert(name.clone(), listing)
            }
            None => self.listed.remove(name),
        };
        self.endpoints -= removed.map_or(0, |listing| listing.endpoints.len());
    }

    fn believes(&mut self, left: usize, now: Instant) -> bool {
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
            "{lost} of {} endpoints vanished at once: all are kept until the registry says so for {hold_for:?}",
            self.endpoints
        );
        self.held = Some((since, Problem::warning(Subject::Source("registry".into()), message)));
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
