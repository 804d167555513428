//! When an Envoy rejects a response: which object is to blame (`blame`, `clues`), what this client is served instead
//! (here), and which clients are affected (`register`, for debug pages, metrics and problems).
//!
//! The object is pinned: the client sees the mesh with the version of the object that it accepted before, or without
//! it. If no object can be blamed, single resources are withheld. Both end with a new version. Every rejection pins or
//! withholds something more, so rejections of an unchanged mesh end.
//!
//! Any client can reject, under any node id. So pins belong to one stream, or to an identity proved by a certificate,
//! and a rejection never restores an earlier policy: a guarded listener has the current policies, or is closed.

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

use crate::serve::pins::Pins;

/// Consecutive rejections of one type after which no object is searched for.
const STRIKES: u32 = 4;

/// A resource whose current version is kept from a client.
#[derive(Clone, Debug)]
struct Withheld {
    bad: Version,
    instead: Instead,
}

#[derive(Clone, Debug)]
enum Instead {
    /// This resource is served instead.
    Served(Resource),
    /// No resource is served.
    Nothing,
    /// The client keeps the resource it has, whose bytes are unknown here.
    Untouched,
}

impl Instead {
    fn of(kind: &TypeUrl, offered: &Offered) -> Instead {
        let name = offered.resource.name.to_string();
        match &offered.former {
            Former::Known(resource) => Instead::Served(resource.clone()),
            Former::Unknown => Instead::Untouched,
            // Envoy waits for resources it requested by name, without end if none is sent.
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

/// Pins and withheld resources of one client, and how far it has accepted changes.
#[derive(Debug, Default)]
pub struct Quarantine {
    pins: Pins,
    /// Pins lifted by a new version: the snapshot number, and the version served until then. Kept until accepted.
    lifted: BTreeMap<Key, (u64, Option<Object>)>,
    withheld: BTreeMap<TypeUrl, BTreeMap<Arc<str>, Withheld>>,
    /// Sets with resources withheld, and the sets they were made from.
    overlaid: BTreeMap<TypeUrl, (Arc<ResourceSet>, Arc<ResourceSet>)>,
    progress: BTreeMap<TypeUrl, Progress>,
    /// Guards of listeners that the client may have, those of the last response at the end.
    held: Vec<Guards>,
    connected_in: u64,
}

/// How far a client has accepted one type.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// The last snapshot with the resources of the last response.
    sent: u64,
    /// The last response is not answered.
    is_open: bool,
    /// The last snapshot with accepted resources; before the first of this type, that of the other types.
    accepted: u64,
    /// Any response was accepted.
    has_accepted: bool,
    /// Rejections since.
    strikes: u32,
}

impl Quarantine {
    /// The state of a client that connects at this snapshot and is known to reject these objects.
    pub fn new(number: u64, pins: Pins) -> Quarantine {
        Quarantine { pins, connected_in: number, ..Quarantine::default() }
    }

    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// A response of this snapshot was sent.
    pub fn sent(&mut self, kind: &TypeUrl, number: u64) {
        let accepted = self.accepted_in_all();
        let first = Progress { accepted, ..Progress::default() };
        let progress = self.progress.entry(kind.clone()).or_insert(first);
        progress.sent = number;
        progress.is_open = true;
    }

    /// This snapshot required no response of a type: an answer to the last response counts for it too.
    pub fn up_to_date(&mut self, kind: &TypeUrl, number: u64) {
        let Some(progress) = self.progress.get_mut(kind) else { return };
        progress.sent = number;
        if !progress.is_open && progress.has_accepted && progress.strikes == 0 {
            self.settle(kind);
        }
    }

    /// Listeners with these guards were sent.
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

    /// Everything sent of a type is accepted.
    fn settle(&mut self, kind: &TypeUrl) {
        if let Some(progress) = self.progress.get_mut(kind) {
            progress.accepted = progress.sent;
        }
        let accepted = self.accepted_in_all();
        self.lifted.retain(|_, (lifted, _)| accepted < *lifted);
    }

    /// The last response was rejected.
    pub fn refused(&mut self, kind: &TypeUrl) {
        if let Some(progress) = self.progress.get_mut(kind) {
            progress.is_open = false;
        }
    }

    /// Lifts pins of objects that have a new version. True if any was lifted.
    pub fn follow(&mut self, number: u64, world: &Snapshot) -> bool {
        if self.progress.is_empty() {
            // Nothing was sent yet that it could reject.
            self.connected_in = number;
        }
        if self.pins.is_empty() {
            return false;
        }
        let kept = self.pins.len();
        for (key, pin) in std::mem::take(&mut self.pins) {
            if pin.holds_in(&key, world) {
                self.pins.insert(key, pin);
            } else {
                self.lifted.insert(key, (number, pin.good));
            }
        }
        self.pins.len() < kept
    }

    /// The snapshot up to which the client has accepted a type.
    fn accepted_in(&self, kind: &TypeUrl) -> u64 {
        self.progress.get(kind).map_or(self.accepted_in_all(), |progress| progress.accepted)
    }

    /// The snapshot up to which the client has accepted everything.
    pub fn accepted_in_all(&self) -> u64 {
        self.progress.values().map(|progress| progress.accepted).min().unwrap_or(self.connected_in)
    }

    /// Whether the client accepted any response of a type on this stream.
    fn has_accepted(&self, kind: &TypeUrl) -> bool {
        self.progress.get(kind).is_some_and(|progress| progress.has_accepted)
    }

    /// Counts a rejection; true as long as an object may be searched for.
    fn strike(&mut self, kind: &TypeUrl) -> bool {
        let progress = self.progress.entry(kind.clone()).or_default();
        progress.strikes += 1;
        progress.strikes <= STRIKES
    }

    /// The version that a client accepted before the object was pinned, if it accepted nothing of this type since.
    fn good_before(&self, key: &Key, kind: &TypeUrl) -> Option<&Option<Object>> {
        let (lifted, good) = self.lifted.get(key)?;
        (self.accepted_in(kind) < *lifted).then_some(good)
    }

    /// Withholds rejected resources. A resource whose earlier version has an earlier policy is removed.
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
            // After several rejections, the version before the first of them is used.
            let instead = match of_kind.remove(name) {
                _ if is_closed(offered) => Instead::Nothing,
                Some(earlier) if earlier.bad != *version => earlier.instead,
                _ => Instead::of(kind, offered),
            };
            of_kind.insert(name.clone(), Withheld { bad: *version, instead });
        }
        self.overlaid.remove(kind);
    }

    /// Names that are withheld, with whether the client has another version of it.
    pub fn withheld(&self) -> impl Iterator<Item = (&TypeUrl, &Arc<str>, bool)> {
        let is_served = |withheld: &Withheld| matches!(withheld.instead, Instead::Served(_) | Instead::Untouched);
        self.withheld
            .iter()
            .flat_map(move |(kind, names)| names.iter().map(move |(name, w)| (kind, name, is_served(w))))
    }

    /// The set with withheld resources replaced. A new version of a resource is no longer withheld.
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

/// The consequence of a rejection.
#[derive(Debug)]
pub enum Judgement {
    /// Newer resources already replace the rejected ones.
    Overtaken,
    /// These objects are pinned from now on.
    Objects(Pins),
    /// These resources are withheld from now on.
    Resources(Vec<Arc<str>>),
}

impl Quarantine {
    /// Finds the cause of a rejection, and pins or withholds it.
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
