//! Which objects are to blame for a refusal: those that changed since the client last said yes, or those that
//! the message speaks of, as far as the refused resources would be different without them.
//!
//! A policy that guards a door is a suspect like all others, but no client gets it in another version: where it is the
//! only suspect, what was refused is withheld.

use std::time::Instant;

use api::{Resource, TypeUrl};
use model::config::traits::Role;
use model::config::{Key, Kind, Object};
use model::proxy::{Proxy, ProxyKind};
use translate::security::guards::Guards;
use xds::{Offered, Rejection, ResourceSet};

use super::clues::{Clues, is_outbound};
use super::register::Refuser;
use super::{Pin, Pins, Quarantine, Register};
use crate::serve::history::Replaced;
use crate::serve::snapshot_writer::PublishedSnapshot;
use crate::serve::views::Views;

/// Objects that are tried one by one. Each costs a view of its own.
const TRIALS: usize = 32;
/// Objects that are pinned for one client in one search. Where more are suspects it is a matter of the resource.
const MOST_PINS: usize = 1000;

/// Where a client refused something.
#[derive(Debug)]
pub struct Scene<'a> {
    pub epoch: &'a PublishedSnapshot,
    pub proxy: &'a Proxy,
    pub views: &'a Views,
    pub register: &'a Register,
    pub refuser: &'a Refuser,
    /// What the client is served now of the refused type.
    pub current: &'a ResourceSet,
    /// What its policies ask for now.
    pub guards: Guards,
    /// When the search must end.
    pub until: Instant,
}

/// What a search found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// These objects can be pinned.
    Pins(Pins),
    /// Only guards can be the reason.
    Guards,
    Nothing,
}

impl Scene<'_> {
    /// Whether this very version would be sent again.
    pub(super) fn is_current(&self, resource: &Resource) -> bool {
        self.current.get(&resource.name).is_some_and(|now| now.version == resource.version)
    }

    /// Whether policies hold for what reaches the client by this listener. What only leaves a sidecar passes none.
    pub(super) fn is_guarded(&self, kind: &TypeUrl, resource: &Resource) -> bool {
        *kind == TypeUrl::LISTENER && (self.proxy.kind == ProxyKind::Router || !is_outbound(resource))
    }

    /// What is to blame.
    pub(super) fn culprits(&self, state: &Quarantine, rejection: &Rejection<'_>, refused: &[&Offered]) -> Blame {
        if self.is_late() {
            return Blame::Nothing;
        }
        let trial = Trial { scene: self, state, kind: rejection.kind, refused };
        let clues = Clues::read(rejection.message, rejection.kind, refused);
        let changed =
            self.epoch.history.between(state.accepted_in(rejection.kind), self.epoch.number).unwrap_or_default();
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
        // Nothing tells which it is. Better to serve without a few rules than to serve nothing. A guard that changed is
        // the better suspect, unless the client has refused whatever it was sent.
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
        self.epoch.snapshot.objects.get(key)
    }

    fn is_late(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Those that the message speaks of most.
    fn best<'a, T>(&self, clues: &Clues, objects: impl Iterator<Item = (&'a Object, T)>) -> Vec<(&'a Object, T)> {
        let in_time = objects.take_while(|_| !self.is_late());
        let scored: Vec<(usize, (&Object, T))> = in_time.map(|found| (clues.score(found.0), found)).collect();
        let most = scored.iter().map(|(score, _)| *score).max().unwrap_or_default();
        scored.into_iter().filter(|(score, _)| most > 0 && *score == most).map(|(_, found)| found).collect()
    }
}

/// Kinds that say how traffic is treated, rather than what exists.
fn is_rule(kind: Kind) -> bool {
    kind.traits().role != Role::Definition
}

/// Kinds that keep somebody away. Whatever a client refuses, it is served these as they are or not at all: an older
/// version, or none, would let in who was let in before.
fn is_guard(kind: Kind) -> bool {
    kind.traits().role == Role::Guard
}

/// An attempt to find what the refused resources depend on.
struct Trial<'a> {
    scene: &'a Scene<'a>,
    state: &'a Quarantine,
    kind: &'a TypeUrl,
    refused: &'a [&'a Offered],
}

impl Trial<'_> {
    /// Of objects that changed, those that show in the refused resources.
    fn changed(&self, changed: &[Replaced]) -> Blame {
        let pin = |(key, before): &Replaced| {
            let good = self.state.good_before(key, self.kind).unwrap_or(before).clone();
            self.pin(key, good)
        };
        self.those_that_matter(changed.iter().map(pin).collect())
    }

    /// Objects that other clients of the same namespace refused.
    fn known(&self) -> Blame {
        let known = self.scene.register.evidence(&self.scene.epoch.snapshot, self.scene.refuser);
        self.those_that_matter(known.into_iter().filter(|(key, _)| !self.state.pins.contains_key(key)).collect())
    }

    /// Objects that the message speaks of.
    fn matching(&self, clues: &Clues, kinds: impl Fn(Kind) -> bool) -> Blame {
        let objects = self.scene.epoch.snapshot.objects.iter();
        let objects = objects.filter(|(key, _)| kinds(key.kind) && !self.state.pins.contains_key(key));
        let best = self.scene.best(clues, objects.map(|(key, object)| (object, key)));
        self.without(best.into_iter().map(|(_, key)| key))
    }

    /// Objects of some kinds, whatever the message says.
    fn all(&self, kinds: impl Fn(Kind) -> bool) -> Blame {
        let keys = self.scene.epoch.snapshot.objects.iter().map(|(key, _)| key);
        self.without(keys.filter(|key| kinds(key.kind) && !self.state.pins.contains_key(key)))
    }

    /// Of objects of which no former version is known, those that show in the refused resources.
    fn without<'k>(&self, keys: impl Iterator<Item = &'k Key>) -> Blame {
        let good = |key: &Key| self.state.good_before(key, self.kind).cloned().unwrap_or_default();
        self.those_that_matter(keys.map(|key| self.pin(key, good(key))).collect())
    }

    fn pin(&self, key: &Key, good: Option<Object>) -> (Key, Pin) {
        (key.clone(), Pin { bad: self.scene.object(key).cloned(), good })
    }

    /// Those that matter each by itself; of many, all or none.
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

    /// Whether these pins would change one of the refused resources. Yes when there is no time left to try.
    fn matters(&self, more: &Pins) -> bool {
        if more.is_empty() || self.scene.is_late() {
            return !more.is_empty();
        }
        let pins = self.with(more);
        let cut = self.scene.views.trial(self.scene.epoch, self.scene.proxy, &pins);
        let Some(set) = cut.set(self.kind) else { return false };
        self.refused.iter().any(|offered| {
            let without = set.get(&offered.resource.name).map(|resource| resource.version);
            without != Some(offered.resource.version)
        })
    }

    /// Whether the same policies hold for a client with these pins: an object may also say which ones do.
    fn keeps_guards(&self, more: &Pins) -> bool {
        self.scene.views.trial(self.scene.epoch, self.scene.proxy, &self.with(more)).guards() == self.scene.guards
    }

    fn with(&self, more: &Pins) -> Pins {
        let mut pins = self.state.pins.clone();
        pins.extend(more.clone());
        pins
    }
}
