//! Finds the objects to blame for a rejection: those that changed since the client last accepted, or those that the
//! message mentions, if the rejected resources would differ without them.
//!
//! A guard is a suspect like any other object, but no client gets it in another version: if it is the only suspect,
//! the rejected resources are withheld.

use api::{Resource, TypeUrl};
use model::config::traits::Role;
use model::config::{Key, Kind, Object};
use model::proxy::{Proxy, ProxyKind};
use tokio::time::Instant;
use translate::security::guards::Guards;
use xds::{Offered, Rejection, ResourceSet};

use super::clues::{Clues, is_outbound};
use super::register::Refuser;
use super::{Quarantine, Register};
use crate::serve::history::Replaced;
use crate::serve::pins::{Pin, Pins};
use crate::serve::snapshot_writer::PublishedSnapshot;
use crate::serve::views::Views;

/// Objects that are tried one by one. Each trial computes a separate view.
const TRIALS: usize = 32;
/// Objects that are pinned for one client in one search. With more suspects the resource is withheld instead.
const MOST_PINS: usize = 1000;

/// The circumstances of a rejection.
#[derive(Debug)]
pub struct Scene<'a> {
    pub published: &'a PublishedSnapshot,
    pub proxy: &'a Proxy,
    pub views: &'a Views,
    pub register: &'a Register,
    pub refuser: &'a Refuser,
    /// The client's current resources of the rejected type.
    pub current: &'a ResourceSet,
    /// The policies that apply to the client now.
    pub guards: Guards,
    /// When the search must end.
    pub until: Instant,
}

/// What the search for the cause of a rejection found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// Objects that are to blame and can be pinned.
    Pins(Pins),
    /// Only security policies can be the cause, and they are never pinned.
    Guards,
    Nothing,
}

impl Scene<'_> {
    /// Whether this version would be sent again.
    pub(super) fn is_current(&self, resource: &Resource) -> bool {
        self.current.get(&resource.name).is_some_and(|now| now.version == resource.version)
    }

    /// Whether policies apply to traffic through this listener. They do not apply to outbound traffic of a sidecar.
    pub(super) fn is_guarded(&self, kind: &TypeUrl, resource: &Resource) -> bool {
        *kind == TypeUrl::LISTENER && (self.proxy.kind == ProxyKind::Router || !is_outbound(resource))
    }

    /// The objects to blame.
    pub(super) fn culprits(&self, state: &Quarantine, rejection: &Rejection<'_>, refused: &[&Offered]) -> Blame {
        if self.is_late() {
            return Blame::Nothing;
        }
        let trial = Trial { scene: self, state, kind: rejection.kind, refused };
        let clues = Clues::read(rejection.message, rejection.kind, refused);
        let changed = self
            .published
            .history
            .between(state.accepted_in(rejection.kind), self.published.number)
            .unwrap_or_default();
        let changed = changed.into_iter().filter(|(key, _)| !state.pins.contains_key(key));
        let (rules, rest): (Vec<Replaced>, Vec<Replaced>) = changed.partition(|(key, _)| is_rule(key.kind));
        let found = rules.iter().chain(&rest).filter_map(|(key, before)| Some((self.object(key)?, before)));
        let spoken_of: Vec<Replaced> =
            self.best(&clues, found).into_iter().map(|(object, before)| (object.key(), before.clone())).collect();
        let attempts: [&dyn Fn() -> Blame; 6] = [
            &|| trial.changed(&spoken_of),
            &|| trial.changed(&rules),
            &|| trial.changed(&rest),
            &|| trial.known(),
            &|| trial.matching(&clues, is_rule),
            &|| trial.matching(&clues, |_| true),
        ];
        let mut has_guards = false;
        let by_evidence = attempts.iter().map(|attempt| attempt()).find(|blame| {
            has_guards |= *blame == Blame::Guards;
            matches!(blame, Blame::Pins(_))
        });
        let by_evidence = by_evidence.or(has_guards.then_some(Blame::Guards));
        // There is no evidence. It is better to serve without a few rules than to serve nothing. A changed guard is the
        // more likely cause, unless the client has rejected everything it was sent.
        let others: &[&dyn Fn() -> Blame] = match &by_evidence {
            Some(Blame::Pins(_)) => &[],
            Some(Blame::Guards) if state.has_accepted(rejection.kind) => &[],
            Some(_) => &[&|| trial.all(|kind| kind == Kind::EnvoyFilter)],
            None => &[&|| trial.all(|kind| kind == Kind::EnvoyFilter), &|| trial.all(is_rule)],
        };
        let by_kind = others.iter().map(|attempt| attempt()).find(|blame| matches!(blame, Blame::Pins(_)));
        by_kind.or(by_evidence).unwrap_or(Blame::Nothing)
    }

    fn object(&self, key: &Key) -> Option<&Object> {
        self.published.snapshot.objects.get(key)
    }

    fn is_late(&self) -> bool {
        Instant::now() >= self.until
    }

    /// The objects that match the message best.
    fn best<'a, T>(&self, clues: &Clues, objects: impl Iterator<Item = (&'a Object, T)>) -> Vec<(&'a Object, T)> {
        let in_time = objects.take_while(|_| !self.is_late());
        let scored: Vec<(usize, (&Object, T))> = in_time.map(|found| (clues.score(found.0), found)).collect();
        let most = scored.iter().map(|(score, _)| *score).max().unwrap_or_default();
        scored.into_iter().filter(|(score, _)| most > 0 && *score == most).map(|(_, found)| found).collect()
    }
}

/// Kinds that define how traffic is treated, rather than what exists.
fn is_rule(kind: Kind) -> bool {
    kind.traits().role != Role::Definition
}

/// Kinds that restrict access. Whatever a client rejects, it gets the current version or no listener: an earlier
/// version, or none, might allow access that was revoked.
fn is_guard(kind: Kind) -> bool {
    kind.traits().role == Role::Guard
}

/// A search among suspects.
struct Trial<'a> {
    scene: &'a Scene<'a>,
    state: &'a Quarantine,
    kind: &'a TypeUrl,
    refused: &'a [&'a Offered],
}

impl Trial<'_> {
    /// The changed objects that affect the rejected resources.
    fn changed(&self, changed: &[Replaced]) -> Blame {
        let pin = |(key, before): &Replaced| {
            let good = self.state.good_before(key, self.kind).unwrap_or(before).clone();
            self.pin(key, good)
        };
        self.those_that_matter(changed.iter().map(pin).collect())
    }

    /// Objects that other clients of the same namespace rejected.
    fn known(&self) -> Blame {
        let known = self.scene.register.evidence(&self.scene.published.snapshot, self.scene.refuser);
        self.those_that_matter(known.into_iter().filter(|(key, _)| !self.state.pins.contains_key(key)).collect())
    }

    /// Objects that match the message.
    fn matching(&self, clues: &Clues, kinds: impl Fn(Kind) -> bool) -> Blame {
        let objects = self.scene.published.snapshot.objects.iter();
        let objects = objects.filter(|(key, _)| kinds(key.kind) && !self.state.pins.contains_key(key));
        let best = self.scene.best(clues, objects.map(|(key, object)| (object, key)));
        self.without(best.into_iter().map(|(_, key)| key))
    }

    /// All objects of some kinds.
    fn all(&self, kinds: impl Fn(Kind) -> bool) -> Blame {
        let keys = self.scene.published.snapshot.objects.iter().map(|(key, _)| key);
        self.without(keys.filter(|key| kinds(key.kind) && !self.state.pins.contains_key(key)))
    }

    /// Those of these objects that affect the rejected resources; their earlier versions are unknown.
    fn without<'k>(&self, keys: impl Iterator<Item = &'k Key>) -> Blame {
        let good = |key: &Key| self.state.good_before(key, self.kind).cloned().unwrap_or_default();
        self.those_that_matter(keys.map(|key| self.pin(key, good(key))).collect())
    }

    fn pin(&self, key: &Key, good: Option<Object>) -> (Key, Pin) {
        (key.clone(), Pin { bad: self.scene.object(key).cloned(), good })
    }

    /// The suspects that matter one by one; if there are many, all or none.
    fn those_that_matter(&self, suspects: Vec<(Key, Pin)>) -> Blame {
        let all: Pins = suspects.into_iter().collect();
        if all.is_empty() || self.scene.is_late() || !self.matters(&all) {
            return Blame::Nothing;
        }
        let (few, alone) = (all.len() <= TRIALS, |key: &Key, pin: &Pin| Pins::from([(key.clone(), pin.clone())]));
        let (guards, pins): (Pins, Pins) = all.into_iter().partition(|(key, _)| is_guard(key.kind));
        let pins: Pins = match few {
            true => pins.into_iter().filter(|(key, pin)| self.matters(&alone(key, pin))).collect(),
            false if guards.is_empty() || self.matters(&pins) => pins,
            false => Pins::new(),
        };
        if !pins.is_empty() && pins.len() <= MOST_PINS && self.keeps_guards(&pins) {
            return Blame::Pins(pins);
        }
        let is_guarded = !few || guards.iter().any(|(key, pin)| self.matters(&alone(key, pin)));
        if !guards.is_empty() && is_guarded { Blame::Guards } else { Blame::Nothing }
    }

    /// Whether these pins would change a rejected resource. Yes if there is no time left to try.
    fn matters(&self, more: &Pins) -> bool {
        if more.is_empty() || self.scene.is_late() {
            return !more.is_empty();
        }
        let pins = self.with(more);
        let cut = self.scene.views.trial(self.scene.published, self.scene.proxy, &pins);
        let Some(set) = cut.set(self.kind) else { return false };
        self.refused.iter().any(|offered| {
            let without = set.get(&offered.resource.name).map(|resource| resource.version);
            without != Some(offered.resource.version)
        })
    }

    /// Whether the same policies apply with these pins: an object may also decide which policies apply.
    fn keeps_guards(&self, more: &Pins) -> bool {
        self.scene.views.trial(self.scene.published, self.scene.proxy, &self.with(more)).guards() == self.scene.guards
    }

    fn with(&self, more: &Pins) -> Pins {
        let mut pins = self.state.pins.clone();
        pins.extend(more.clone());
        pins
    }
}
