//! When an Envoy refuses a response: which configuration object is to blame (`blame`, `clues`), what this client
//! is served instead of it (here), and who was affected (`register`, for pages, metrics and problems).
//!
//! An object is pinned: the client sees the mesh with the version of the object that it accepted before, or
//! without it. Where no object can be blamed a single resource is withheld. Either ends with the next version.
//! Every refusal pins or withholds something more, so that refusals of an unchanged world come to an end.
//!
//! Anybody can refuse under any name. So pins belong to one stream, or to an identity that a certificate proves; and no
//! refusal brings an older policy back: a listener that policies guard is served with today's, or closed.

mod blame;
mod budget;
mod clues;
mod register;

pub use blame::Scene;
pub use budget::Payer;
pub use register::{Affected, Refuser, Register};

use blame::Blame;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::envoy::config::endpoint::v3::ClusterLoadAssignment;
use api::envoy::config::route::v3::RouteConfiguration;
use api::{Resource, TypeUrl, Version};
use model::config::{Key, Object};
use model::snapshot::Snapshot;
use translate::security::guards::Guards;
use xds::{Former, Offered, Rejection, ResourceSet};

/// Refusals of one type in a row after which no object is looked for any more.
const STRIKES: u32 = 4;

/// Objects of which a client is served another version.
pub type Pins = BTreeMap<Key, Pin>;

/// An object whose current version is kept from a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pin {
    /// The version that was refused; `None` if refused was that it is gone.
    pub bad: Option<Object>,
    /// What is served instead; `None` for nothing.
    pub good: Option<Object>,
}

impl Pin {
    /// Whether the refused version is the one that the mesh has.
    fn holds_in(&self, key: &Key, world: &Snapshot) -> bool {
        match (&self.bad, world.objects.get(key)) {
            (Some(bad), Some(now)) => bad.means_the_same_as(now),
            (None, None) => true,
            _ => false,
        }
    }
}

/// The mesh as a client with these pins sees it.
pub fn pinned(world: &Snapshot, pins: &Pins) -> Snapshot {
    world.with(pins.iter().map(|(key, pin)| (key.clone(), pin.good.clone())))
}

/// A resource whose current version is kept from a client.
#[derive(Clone, Debug)]
struct Withheld {
    bad: Version,
    instead: Instead,
}

#[derive(Clone, Debug)]
enum Instead {
    /// This one is served.
    Served(Resource),
    /// There is none.
    Nothing,
    /// The client has one, which is left alone.
    Untouched,
}

impl Instead {
    fn of(kind: &TypeUrl, offered: &Offered) -> Instead {
        let name = offered.resource.name.to_string();
        match &offered.former {
            Former::Known(resource) => Instead::Served(resource.clone()),
            Former::Unknown => Instead::Untouched,
            // Envoy waits for what it asked for by name, and for ever if nothing comes.
            Former::Nothing if *kind == TypeUrl::ROUTE => {
                let table = RouteConfiguration { name: name.clone(), ..RouteConfiguration::default() };
                Instead::Served(Resource::new(name, &table))
            }
            Former::Nothing if *kind == TypeUrl::ENDPOINT => {
                let none = ClusterLoadAssignment { cluster_name: name.clone(), ..ClusterLoadAssignment::default() };
                Instead::Served(Resource::new(name, &none))
            }
            Former::Nothing => Instead::Nothing,
        }
    }
}

/// What is kept from one client, and how far it has followed.
#[derive(Debug, Default)]
pub struct Quarantine {
    pins: Pins,
    /// Pins that a new version lifted: in which epoch, and what was served until then. Kept until it is accepted.
    lifted: BTreeMap<Key, (u64, Option<Object>)>,
    withheld: BTreeMap<TypeUrl, BTreeMap<Arc<str>, Withheld>>,
    /// Sets with resources withheld, and from what they were made.
    overlaid: BTreeMap<TypeUrl, (Arc<ResourceSet>, Arc<ResourceSet>)>,
    progress: BTreeMap<TypeUrl, Progress>,
    /// Guards of the listeners that the client may hold, those of the last response at the end.
    held: Vec<Guards>,
    connected_in: u64,
}

/// How far a client has followed one type.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// The last epoch with the resources of the last response.
    sent: u64,
    /// The last response is not answered.
    is_open: bool,
    /// The last epoch with resources that were accepted, be it those of another type before the first of this one.
    accepted: u64,
    /// Some response was accepted.
    has_accepted: bool,
    /// Refusals since.
    strikes: u32,
}

impl Quarantine {
    /// The state of a client that connects in this epoch with these objects known to be refused by it.
    pub fn new(epoch: u64, pins: Pins) -> Quarantine {
        Quarantine { pins, connected_in: epoch, ..Quarantine::default() }
    }

    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// A response went out in this epoch.
    pub fn sent(&mut self, kind: &TypeUrl, epoch: u64) {
        let accepted = self.accepted_in_all();
        let first = Progress { accepted, ..Progress::default() };
        let progress = self.progress.entry(kind.clone()).or_insert(first);
        progress.sent = epoch;
        progress.is_open = true;
    }

    /// In this epoch there was nothing to send of a type: an answer to the last response is one for this epoch too.
    pub fn up_to_date(&mut self, kind: &TypeUrl, epoch: u64) {
        let Some(progress) = self.progress.get_mut(kind) else { return };
        progress.sent = epoch;
        if !progress.is_open && progress.has_accepted && progress.strikes == 0 {
            self.settle(kind);
        }
    }

    /// Listeners with these guards went out.
    pub fn guarded(&mut self, guards: Guards) {
        self.held.retain(|held| *held != guards);
        self.held.push(guards);
    }

    /// The last response was accepted.
    pub fn accepted(&mut self, kind: &TypeUrl) {
        if *kind == TypeUrl::LISTENER {
            self.held.drain(..self.held.len().saturating_sub(1));
        }
        let Some(progress) = self.progress.get_mut(kind) else { return };
        progress.has_accepted = true;
        progress.is_open = false;
        progress.strikes = 0;
        self.settle(kind);
    }

    /// What was sent of a type is accepted.
    fn settle(&mut self, kind: &TypeUrl) {
        if let Some(progress) = self.progress.get_mut(kind) {
            progress.accepted = progress.sent;
        }
        let accepted = self.accepted_in_all();
        self.lifted.retain(|_, (lifted, _)| accepted < *lifted);
    }

    /// The last response was refused.
    pub fn refused(&mut self, kind: &TypeUrl) {
        if let Some(progress) = self.progress.get_mut(kind) {
            progress.is_open = false;
        }
    }

    /// Lets new versions through. True if that lifted a pin.
    pub fn follow(&mut self, epoch: u64, world: &Snapshot) -> bool {
        if self.progress.is_empty() {
            // It was sent nothing that it could refuse.
            self.connected_in = epoch;
        }
        if self.pins.is_empty() {
            return false;
        }
        let kept = self.pins.len();
        for (key, pin) in std::mem::take(&mut self.pins) {
            if pin.holds_in(&key, world) {
                self.pins.insert(key, pin);
            } else {
                self.lifted.insert(key, (epoch, pin.good));
            }
        }
        self.pins.len() < kept
    }

    /// The epoch up to which the client is known to have accepted a type.
    fn accepted_in(&self, kind: &TypeUrl) -> u64 {
        self.progress.get(kind).map_or(self.accepted_in_all(), |progress| progress.accepted)
    }

    /// The epoch up to which the client is known to have accepted everything.
    pub fn accepted_in_all(&self) -> u64 {
        self.progress.values().map(|progress| progress.accepted).min().unwrap_or(self.connected_in)
    }

    /// Whether the client accepted anything of a type on this stream.
    fn has_accepted(&self, kind: &TypeUrl) -> bool {
        self.progress.get(kind).is_some_and(|progress| progress.has_accepted)
    }

    /// Counts a refusal; true while it makes sense to look for an object.
    fn strike(&mut self, kind: &TypeUrl) -> bool {
        let progress = self.progress.entry(kind.clone()).or_default();
        progress.strikes += 1;
        progress.strikes <= STRIKES
    }

    /// What a client accepted of an object before it was pinned, if the client accepted nothing of this type since.
    fn good_before(&self, key: &Key, kind: &TypeUrl) -> Option<&Option<Object>> {
        let (lifted, good) = self.lifted.get(key)?;
        (self.accepted_in(kind) < *lifted).then_some(good)
    }

    /// Keeps refused resources from the client. Where that would leave it with an older policy, it is left with nothing.
    fn withhold(&mut self, kind: &TypeUrl, refused: &[&Offered], scene: &Scene<'_>, by_guards: bool) {
        let has_only = self.held.iter().all(|held| *held == scene.guards);
        let is_closed = |offered: &Offered| match offered.former {
            _ if !scene.is_guarded(kind, &offered.resource) => by_guards && *kind == TypeUrl::CLUSTER,
            _ if scene.guards.is_open => false,
            Former::Known(_) => by_guards || !has_only,
            Former::Unknown | Former::Nothing => true,
        };
        let of_kind = self.withheld.entry(kind.clone()).or_default();
        for offered in refused {
            let Resource { name, version, .. } = &offered.resource;
            // The former version is that of before the first refusal, if there were several.
            let instead = match of_kind.remove(name) {
                _ if is_closed(offered) => Instead::Nothing,
                Some(earlier) if earlier.bad != *version => earlier.instead,
                _ => Instead::of(kind, offered),
            };
            of_kind.insert(name.clone(), Withheld { bad: *version, instead });
        }
        self.overlaid.remove(kind);
    }

    /// Names of one type that are withheld, with what stands for them.
    pub fn withheld(&self) -> impl Iterator<Item = (&TypeUrl, &Arc<str>, bool)> {
        let is_served = |withheld: &Withheld| matches!(withheld.instead, Instead::Served(_) | Instead::Untouched);
        self.withheld
            .iter()
            .flat_map(move |(kind, names)| names.iter().map(move |(name, w)| (kind, name, is_served(w))))
    }

    /// The set with what stands for withheld resources. A new version of a resource is let through.
    pub fn overlay(&mut self, kind: &TypeUrl, set: Arc<ResourceSet>) -> Arc<ResourceSet> {
        let Some(withheld) = self.withheld.get_mut(kind) else { return set };
        if let Some((_, made)) = self.overlaid.get(kind).filter(|(from, _)| Arc::ptr_eq(from, &set)) {
            return made.clone();
        }
        withheld.retain(|name, withheld| set.get(name).is_some_and(|now| now.version == withheld.bad));
        if withheld.is_empty() {
            self.withheld.remove(kind);
            self.overlaid.remove(kind);
            return set;
        }
        let made = Arc::new(overlay(&set, withheld.clone()));
        self.overlaid.insert(kind.clone(), (set, made.clone()));
        made
    }
}

fn overlay(set: &Arc<ResourceSet>, withheld: BTreeMap<Arc<str>, Withheld>) -> ResourceSet {
    let served = |withheld: &Withheld| match &withheld.instead {
        Instead::Served(instead) => Some(instead.clone()),
        Instead::Nothing | Instead::Untouched => None,
    };
    let replaced: Vec<_> = withheld.iter().map(|(name, withheld)| (name.clone(), served(withheld))).collect();
    let untouched = withheld.iter().filter(|(_, withheld)| matches!(withheld.instead, Instead::Untouched));
    let untouched: Vec<Arc<str>> = untouched.map(|(name, _)| name.clone()).collect();
    let below = set.clone();
    let answer = move |name: &str| match withheld.get(name).map(|withheld| &withheld.instead) {
        None => below.get(name),
        Some(Instead::Served(instead)) => Some(instead.clone()),
        Some(Instead::Nothing | Instead::Untouched) => None,
    };
    set.with_replaced(replaced).with_fallback(answer).with_withheld(untouched)
}

/// What a refusal led to.
#[derive(Debug)]
pub enum Judgement {
    /// Newer resources replace what was refused.
    Overtaken,
    /// These objects are pinned from now on.
    Objects(Pins),
    /// These resources are withheld from now on.
    Resources(Vec<Arc<str>>),
}

impl Quarantine {
    /// Finds what made the client refuse a response, and keeps it from the client from now on.
    pub fn judge(&mut self, rejection: &Rejection<'_>, scene: &Scene<'_>) -> Judgement {
        let is_current = |offered: &&Offered| scene.is_current(&offered.resource);
        let offered: Vec<&Offered> = rejection.offered.iter().filter(is_current).collect();
        if offered.is_empty() {
            return Judgement::Overtaken;
        }
        let may_look = self.strike(rejection.kind);
        let named = clues::named(rejection.message, &offered);
        let refused = if named.is_empty() || !may_look { offered } else { named };
        let blame = if may_look { scene.culprits(self, rejection, &refused) } else { Blame::Nothing };
        if let Blame::Pins(pins) = blame {
            self.pins.extend(pins.clone());
            return Judgement::Objects(pins);
        }
        self.withhold(rejection.kind, &refused, scene, blame == Blame::Guards);
        Judgement::Resources(refused.iter().map(|offered| offered.resource.name.clone()).collect())
    }
}
