//! The state of one type on one stream: the subscription, the resources the client holds, and those being sent.
//! Both protocols use it; `response` turns a [`Plan`] into a message.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use api::{Resource, TypeUrl, Version};

use crate::control::{Former, Offered};
use crate::payload::{Payload, Protocol};
use crate::set::{ResourceSet, SetStep};
use crate::subscription::Subscription;

/// The number of a world, counted per stream.
pub(crate) type Epoch = u64;

/// One type on one stream.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) kind: TypeUrl,
    pub(crate) subscription: Subscription,
    pub(crate) holding: Holding,
    /// Names to send even if the client holds them in this version.
    pub(crate) forced: BTreeSet<Arc<str>>,
    /// A response is due even if it is empty.
    pub(crate) owed: bool,
    /// Number of the last response; 0 before the first.
    pub(crate) nonce: u64,
    pub(crate) version: Option<Version>,
    /// The last response is neither acknowledged nor rejected.
    pub(crate) unanswered: bool,
    /// The content of the last response, until it is answered.
    pub(crate) offer: Option<Offer>,
    /// Any response was answered.
    pub(crate) answered_before: bool,
    /// The last response had resources that were new to the client.
    pub(crate) introduced: bool,
    /// Nothing more is sent before the last response is answered or this time is reached.
    pub(crate) waits_until: Option<Instant>,
    /// The world up to which everything was sent, except removals that have to wait.
    pub(crate) seen: Epoch,
    /// The world up to which the client has answered everything.
    pub(crate) settled: Epoch,
}

/// Resources that the client holds, or will hold when it has read all responses:
/// the part of `base` that it subscribes to, with some exceptions.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    pub(crate) base: Option<Arc<ResourceSet>>,
    pub(crate) except: BTreeMap<Arc<str>, Held>,
}

/// How one name differs from the base.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Held {
    Nothing,
    /// Unknown: nothing, or a version of another server. If the resource exists, it is sent.
    Unknown,
    Version(Version),
    /// Removed, but routes may still refer to it; the removal waits for the answers to world `since`.
    Lingering {
        resource: Option<Resource>,
        since: Epoch,
    },
}

impl Held {
    fn version(&self) -> Option<Version> {
        match self {
            Self::Version(version) => Some(*version),
            Self::Lingering { resource, .. } => resource.as_ref().map(|r| r.version),
            Self::Nothing | Self::Unknown => None,
        }
    }
}

impl Holding {
    fn get(&self, name: &str) -> Held {
        match (self.except.get(name), &self.base) {
            (Some(held), _) => held.clone(),
            (None, Some(base)) => base.listed(name).map_or(Held::Nothing, |r| Held::Version(r.version)),
            (None, None) => Held::Nothing,
        }
    }

    /// The version that the client holds under a name, with its bytes if the base still has them.
    fn resource(&self, name: &str) -> Former {
        let held = self.get(name);
        if held == Held::Nothing {
            return Former::Nothing;
        }
        if let Held::Lingering { resource: Some(resource), .. } = held {
            return Former::Known(resource);
        }
        let known = self.base.as_ref().and_then(|base| base.get(name)).filter(|r| held.version() == Some(r.version));
        known.map_or(Former::Unknown, Former::Known)
    }

    fn lingering(&self, name: &Arc<str>, now: Epoch) -> Held {
        match self.except.get(name) {
            Some(held @ Held::Lingering { .. }) => held.clone(),
            // The base may have the version that the client rejected.
            Some(Held::Unknown) => Held::Lingering { resource: None, since: now },
            _ => {
                let resource = self.base.as_ref().and_then(|base| base.listed(name)).cloned();
                Held::Lingering { resource, since: now }
            }
        }
    }
}

/// The content of a response, and what the client held before it.
#[derive(Debug)]
pub(crate) struct Offer {
    /// The response has all of `target`, rather than changes.
    everything: bool,
    changed: Vec<Resource>,
    removed: Vec<Arc<str>>,
    target: Arc<ResourceSet>,
    former: Holding,
}

impl Offer {
    /// Resources of the response that the client had not accepted before.
    pub(crate) fn resources(&self) -> Vec<Offered> {
        let offered = |r: &Resource| Offered { resource: r.clone(), former: self.former.resource(&r.name) };
        self.sent().map(offered).collect()
    }

    fn sent(&self) -> impl Iterator<Item = &Resource> {
        let target = self.everything.then(|| self.target.resources());
        target.into_iter().flatten().chain(&self.changed)
    }
}

/// The difference between what a client holds and the current set.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The client holds nothing and subscribes to everything; `changed` is empty then.
    pub(crate) everything: bool,
    pub(crate) changed: Vec<Resource>,
    /// Some resources are new to the client.
    pub(crate) introduces: bool,
    /// Names that the client holds, that no longer exist, and whose removal may be sent.
    pub(crate) removed: Vec<Arc<str>>,
    /// Names just subscribed to that the client does not hold and that do not exist.
    pub(crate) absent: Vec<Arc<str>>,
    /// The exceptions in the client's holding after this plan.
    except: BTreeMap<Arc<str>, Held>,
    step: Option<SetStep>,
}

impl Plan {
    /// Removed resources that stay in the client's listing for now.
    pub(crate) fn lingering(&self) -> Vec<Resource> {
        let resource = |held: &Held| match held {
            Held::Lingering { resource, .. } => resource.clone(),
            _ => None,
        };
        self.except.values().filter_map(resource).collect()
    }

    /// Checks a name again in every later world: the difference between two sets does not show that a fallback now
    /// has a resource for it.
    fn awaits(&mut self, name: Arc<str>, named: bool) {
        if named {
            self.except.insert(name, Held::Nothing);
        }
    }

    /// A SotW listing removes everything it omits, so only listed exceptions remain.
    pub(crate) fn lists_all(&mut self) {
        self.except.retain(|_, held| !matches!(held, Held::Lingering { resource: None, .. }));
    }

    /// The changed resources, in bytes shared with other streams that send the same resources.
    pub(crate) fn payload(&self, target: &ResourceSet, protocol: Protocol) -> Payload {
        if self.everything || has_names(target, &self.changed) {
            return target.whole(protocol);
        }
        let shared = self.step.as_ref().and_then(|step| step.payload_of(&self.changed, target.content(), protocol));
        shared.unwrap_or_else(|| Payload::of(target.content(), &self.changed, protocol))
    }

    pub(crate) fn resource_count(&self, target: &ResourceSet) -> usize {
        if self.everything { target.len() } else { self.changed.len() }
    }
}

/// Whether a set lists these names and no others.
fn has_names(set: &ResourceSet, resources: &[Resource]) -> bool {
    set.len() == resources.len() && set.resources().zip(resources).all(|(listed, r)| listed.name == r.name)
}

impl Watch {
    pub(crate) fn new(kind: TypeUrl) -> Self {
        Self {
            kind,
            subscription: Subscription::default(),
            holding: Holding::default(),
            forced: BTreeSet::new(),
            owed: false,
            nonce: 0,
            version: None,
            unanswered: false,
            offer: None,
            answered_before: false,
            introduced: false,
            waits_until: None,
            seen: 0,
            settled: 0,
        }
    }

    /// Sends everything again. Known resources stay known, so that their removal is sent.
    pub(crate) fn forget(&mut self) {
        let Holding { base, except } = std::mem::take(&mut self.holding);
        let listed = base.iter().flat_map(|base| base.resources()).map(|r| (Arc::clone(&r.name), Held::Unknown));
        self.holding.except = listed.collect();
        for (name, held) in except {
            let held = match held {
                Held::Lingering { .. } => {
                    self.forced.insert(Arc::clone(&name));
                    held
                }
                Held::Nothing => Held::Nothing,
                Held::Unknown | Held::Version(_) => Held::Unknown,
            };
            self.holding.except.insert(name, held);
        }
        self.seen = 0;
    }

    /// The client holds something else under this name than was recorded.
    pub(crate) fn correct(&mut self, name: &Arc<str>, held: Held) {
        if self.holding.base.is_some() || self.holding.except.contains_key(name) {
            self.holding.except.insert(Arc::clone(name), held);
        }
        self.seen = 0;
    }

    /// Records a response: its number, its version, and until when to wait for the answer.
    pub(crate) fn sent(&mut self, nonce: u64, version: Version, introduced: bool, waits_until: Instant) {
        self.nonce = nonce;
        self.version = Some(version);
        self.introduced = introduced;
        self.unanswered = true;
        self.waits_until = Some(waits_until);
    }

    /// The client acknowledged or rejected its last response.
    pub(crate) fn answered(&mut self) {
        self.unanswered = false;
        self.answered_before = true;
        self.go_on();
    }

    /// Stops waiting for an answer.
    pub(crate) fn go_on(&mut self) {
        self.waits_until = None;
        self.settled = self.seen;
    }

    /// True if `plan` may find something to send.
    pub(crate) fn is_due(&self, now: Epoch, released: Epoch) -> bool {
        let may_remove = |held: &Held| matches!(held, Held::Lingering { since, .. } if *since <= released);
        self.owed || self.seen < now || !self.forced.is_empty() || self.holding.except.values().any(may_remove)
    }

    /// Whether the client has answered everything up to this world, and no removal waits.
    pub(crate) fn is_settled(&self, now: Epoch) -> bool {
        let is_removal = |held: &Held| matches!(held, Held::Lingering { .. });
        let is_sent = self.seen >= now && !self.unanswered && !self.owed && self.forced.is_empty();
        is_sent && !self.holding.except.values().any(is_removal)
    }

    /// Whether `plan` has few names to compare.
    pub(crate) fn is_small(&self) -> bool {
        const FEW: usize = 64;
        self.holding.base.is_some() && self.holding.except.len() + self.forced.len() <= FEW
    }

    /// Names that `plan` looks up although no set lists them; some may be listed.
    pub(crate) fn unlisted(&self) -> impl Iterator<Item = &str> {
        self.forced.iter().chain(self.holding.except.keys()).map(|name| &**name)
    }

    /// Whether the client holds all of a set that it was brought up to before. Nothing is compared: a set never changes.
    pub(crate) fn is_unchanged(&self, target: &Arc<ResourceSet>) -> bool {
        let Holding { base, except } = &self.holding;
        let is_same = base.as_ref().is_some_and(|base| Arc::ptr_eq(base, target));
        let is_settled = self.seen > 0 && !self.owed && self.forced.is_empty();
        is_same && is_settled && !except.values().any(|held| matches!(held, Held::Lingering { .. }))
    }

    /// Compares the client's subscription and holding with the current set. Removals that were first noticed after
    /// world `released` have to wait.
    pub(crate) fn plan(&self, target: &ResourceSet, now: Epoch, released: Epoch) -> Plan {
        let Holding { base, except } = &self.holding;
        let Subscription { wildcard, names, .. } = &self.subscription;
        let wants_all = *wildcard && names.is_empty() || !wildcard && target.lists_exactly(names);
        if base.is_none() && except.is_empty() && wants_all {
            return Plan { everything: true, introduces: true, ..Plan::default() };
        }
        let step = base.as_ref().map(|base| target.step_from(base));
        // Most changes of endpoints: no name has to be compared.
        if wants_all
            && self.holds_its_base()
            && step.as_ref().zip(base.as_ref()).is_some_and(|(s, base)| s.replaces_only(base, target))
        {
            let changed = step.as_ref().map_or_else(Vec::new, SetStep::changed_in_order);
            return Plan { changed, step, ..Plan::default() };
        }
        let mut plan = Plan::default();
        for name in self.candidates(target, step.as_ref()) {
            self.compare(&mut plan, name, target, now, released);
        }
        plan.step = step;
        plan
    }

    /// Whether the client holds its base without exceptions.
    fn holds_its_base(&self) -> bool {
        self.holding.except.is_empty() && self.forced.is_empty()
    }

    /// Every subscribed name whose state may differ from what the client holds, in order.
    fn candidates(&self, target: &ResourceSet, step: Option<&SetStep>) -> BTreeSet<Arc<str>> {
        let mut names: BTreeSet<Arc<str>> = self.forced.iter().chain(self.holding.except.keys()).cloned().collect();
        match step {
            Some(step) => names.extend(step.changed().map(|r| &r.name).chain(step.removed()).cloned()),
            None => {
                names.extend(self.subscription.names.iter().cloned());
                if self.subscription.wildcard {
                    names.extend(target.resources().map(|r| Arc::clone(&r.name)));
                }
            }
        }
        names.retain(|name| self.subscription.covers(name));
        names
    }

    fn compare(&self, plan: &mut Plan, name: Arc<str>, target: &ResourceSet, now: Epoch, released: Epoch) {
        let listed = target.listed(&name);
        let named = self.subscription.names.contains(&name);
        let wanted = if named { target.get(&name) } else { listed.cloned() };
        let held = self.holding.get(&name);
        let forced = self.forced.contains(&name);
        match wanted {
            Some(resource) => {
                if listed.is_none() {
                    plan.except.insert(name, Held::Version(resource.version));
                }
                if forced || held.version() != Some(resource.version) {
                    plan.introduces |= matches!(held, Held::Nothing | Held::Unknown);
                    plan.changed.push(resource);
                }
            }
            None if target.withholds(&name) => {
                plan.except.insert(name, held);
            }
            None if held == Held::Nothing => {
                plan.absent.extend((forced && named).then(|| Arc::clone(&name)));
                plan.awaits(name, named);
            }
            None => match self.holding.lingering(&name, now) {
                Held::Lingering { since, .. } if since <= released => {
                    plan.removed.push(Arc::clone(&name));
                    plan.awaits(name, named);
                }
                lingering => {
                    plan.except.insert(name, lingering);
                }
            },
        }
    }

    /// Records that the plan was sent. The previous holding is kept until the client answers.
    pub(crate) fn offered(&mut self, plan: Plan, target: Arc<ResourceSet>, now: Epoch) {
        let former = std::mem::take(&mut self.holding);
        let Plan { everything, changed, removed, except, .. } = plan;
        self.offer = Some(Offer { everything, changed, removed, target: Arc::clone(&target), former });
        self.adopt(except, target, now);
    }

    /// The client rejected its last response. Which part of it was applied is unknown, so all of it is due again.
    pub(crate) fn retract(&mut self, offer: Offer) {
        let names = offer.sent().map(|r| &r.name).chain(&offer.removed).cloned();
        self.holding.except.extend(names.map(|name| (name, Held::Unknown)));
        self.seen = 0;
    }

    /// Records that the plan had nothing to send.
    pub(crate) fn carried_out(&mut self, plan: Plan, target: Arc<ResourceSet>, now: Epoch) {
        self.adopt(plan.except, target, now);
    }

    fn adopt(&mut self, except: BTreeMap<Arc<str>, Held>, target: Arc<ResourceSet>, now: Epoch) {
        self.holding = Holding { base: Some(target), except };
        self.forced.clear();
        self.owed = false;
        self.unchanged(now);
    }

    /// Records that the client holds what it should in this world.
    pub(crate) fn unchanged(&mut self, now: Epoch) {
        self.seen = now;
        if self.waits_until.is_none() {
            self.settled = now;
        }
    }

    /// Records that this type is not served.
    pub(crate) fn carried_out_nothing(&mut self, now: Epoch) {
        self.forced.clear();
        self.owed = false;
        self.seen = now;
        self.settled = now;
    }
}
