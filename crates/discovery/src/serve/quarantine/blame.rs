//! Which objects are to blame for a refusal: those that changed since the client last said yes, or those that
//! the message speaks of, as far as the refused resources would be different without them.

use api::{Resource, TypeUrl};
use model::config::{Key, Kind, Object};
use model::proxy::Proxy;
use xds::{Offered, Rejection, ResourceSet};

use super::clues::Clues;
use super::{Pin, Pins, Quarantine, Register};
use crate::serve::history::Replaced;
use crate::serve::views::Views;
use crate::serve::world::Epoch;

/// Objects that are tried one by one. Each costs a view of its own.
const TRIALS: usize = 32;

/// Where a client refused something.
#[derive(Debug)]
pub struct Scene<'a> {
    pub epoch: &'a Epoch,
    pub proxy: &'a Proxy,
    pub views: &'a Views,
    pub register: &'a Register,
    /// What the client is served now of the refused type.
    pub current: &'a ResourceSet,
}

impl Scene<'_> {
    /// Whether this very version would be sent again.
    pub(super) fn is_current(&self, resource: &Resource) -> bool {
        self.current.get(&resource.name).is_some_and(|now| now.version == resource.version)
    }

    /// The objects to pin; none if none can be blamed.
    pub(super) fn culprits(&self, state: &Quarantine, rejection: &Rejection<'_>, refused: &[&Offered]) -> Pins {
        let trial = Trial { scene: self, state, kind: rejection.kind, refused };
        let clues = Clues::read(rejection.message, rejection.kind, refused);
        let changed = self.epoch.history.since(state.accepted_in(rejection.kind)).unwrap_or_default();
        let changed = changed.into_iter().filter(|(key, _)| !state.pins.contains_key(key));
        let (rules, rest): (Vec<Replaced>, Vec<Replaced>) = changed.partition(|(key, _)| is_rule(key.kind));
        let found = rules.iter().chain(&rest).filter_map(|(key, before)| Some((self.object(key)?, before)));
        let spoken_of: Vec<Replaced> =
            best(&clues, found).into_iter().map(|(object, before)| (object.key(), before.clone())).collect();
        let first = |attempts: &[&dyn Fn() -> Pins]| {
            attempts.iter().map(|attempt| attempt()).find(|pins| !pins.is_empty()).unwrap_or_default()
        };
        first(&[
            &|| trial.changed(&spoken_of),
            &|| trial.changed(&rules),
            &|| trial.changed(&rest),
            &|| trial.known(),
            &|| trial.matching(&clues, is_rule),
            &|| trial.matching(&clues, |_| true),
            // Nothing tells which it is. Better to serve without a few rules than to serve nothing.
            &|| trial.all(|kind| kind == Kind::EnvoyFilter),
            &|| trial.all(is_rule),
        ])
    }

    fn object(&self, key: &Key) -> Option<&Object> {
        self.epoch.snapshot.objects.get(key)
    }
}

/// Kinds that say how traffic is treated, rather than what exists.
fn is_rule(kind: Kind) -> bool {
    let places = [Kind::Sidecar, Kind::Gateway, Kind::KubernetesGateway, Kind::GatewayClass, Kind::ListenerSet];
    let workloads = [Kind::ServiceEntry, Kind::WorkloadEntry, Kind::WorkloadGroup];
    !places.contains(&kind) && !workloads.contains(&kind)
}

/// Those that the message speaks of most.
fn best<'a, T>(clues: &Clues, objects: impl Iterator<Item = (&'a Object, T)>) -> Vec<(&'a Object, T)> {
    let scored: Vec<(usize, (&Object, T))> = objects.map(|found| (clues.score(found.0), found)).collect();
    let most = scored.iter().map(|(score, _)| *score).max().unwrap_or_default();
    scored.into_iter().filter(|(score, _)| most > 0 && *score == most).map(|(_, found)| found).collect()
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
    fn changed(&self, changed: &[Replaced]) -> Pins {
        let pin = |(key, before): &Replaced| {
            let good = self.state.good_before(key, self.kind).unwrap_or(before).clone();
            self.pin(key.clone(), good)
        };
        self.those_that_matter(changed.iter().filter_map(pin).collect())
    }

    /// Objects that other clients refused.
    fn known(&self) -> Pins {
        let known = self.scene.register.pins(&self.scene.epoch.snapshot, None);
        let unpinned = known.into_iter().filter(|(key, pin)| !self.state.pins.contains_key(key) && is_safe(key, pin));
        self.those_that_matter(unpinned.collect())
    }

    /// Objects that the message speaks of.
    fn matching(&self, clues: &Clues, kinds: impl Fn(Kind) -> bool) -> Pins {
        let objects = self.scene.epoch.snapshot.objects.iter();
        let objects = objects.filter(|(key, _)| kinds(key.kind) && !self.state.pins.contains_key(key));
        let best = best(clues, objects.map(|(key, object)| (object, key)));
        self.without(best.into_iter().map(|(_, key)| key))
    }

    /// Objects of some kinds, whatever the message says.
    fn all(&self, kinds: impl Fn(Kind) -> bool) -> Pins {
        let keys = self.scene.epoch.snapshot.objects.iter().map(|(key, _)| key);
        self.without(keys.filter(|key| kinds(key.kind) && !self.state.pins.contains_key(key)))
    }

    /// Of objects of which no former version is known, those that show in the refused resources.
    fn without<'k>(&self, keys: impl Iterator<Item = &'k Key>) -> Pins {
        let good = |key: &Key| self.state.good_before(key, self.kind).cloned().unwrap_or_default();
        self.those_that_matter(keys.filter_map(|key| self.pin(key.clone(), good(key))).collect())
    }

    fn pin(&self, key: Key, good: Option<Object>) -> Option<(Key, Pin)> {
        let pin = Pin { bad: self.scene.object(&key).cloned(), good };
        is_safe(&key, &pin).then_some((key, pin))
    }

    /// Those that matter each by itself; of many, all or none.
    fn those_that_matter(&self, pins: Vec<(Key, Pin)>) -> Pins {
        let all: Pins = pins.into_iter().collect();
        if all.is_empty() || !self.matters(&all) {
            return Pins::new();
        }
        if all.len() > TRIALS {
            return all;
        }
        let alone = |(key, pin): &(Key, Pin)| self.matters(&Pins::from([(key.clone(), pin.clone())]));
        all.into_iter().filter(alone).collect()
    }

    /// Whether these pins would change one of the refused resources.
    fn matters(&self, more: &Pins) -> bool {
        let mut pins = self.state.pins.clone();
        pins.extend(more.clone());
        let cut = self.scene.views.trial(self.scene.epoch, self.scene.proxy, &pins);
        let Some(set) = cut.set(self.kind) else { return false };
        self.refused.iter().any(|offered| {
            let without = set.get(&offered.resource.name).map(|resource| resource.version);
            without != Some(offered.resource.version)
        })
    }
}

/// A policy is never simply left out: who it keeps away would get in. Its listener is withheld instead.
fn is_safe(key: &Key, pin: &Pin) -> bool {
    let guards =
        [Kind::AuthorizationPolicy, Kind::RequestAuthentication, Kind::PeerAuthentication, Kind::BackendTlsPolicy];
    pin.good.is_some() || !guards.contains(&key.kind)
}
