//! The Eureka registry: the whole list once, then what changed, checked by the hash code that comes with it.
//! Peers copy each other slowly and start empty, so what a new acquaintance does not know is kept for a lease.

mod mapping;
mod options;
mod peers;
mod wire;

pub use options::{Options, ServicePer};

use std::collections::{BTreeMap, BTreeSet};

use model::change::SourceId;
use model::names::ClusterId;
use tokio::time::Instant;
use tracing::debug;

use crate::registry::ledger::{Ledger, Protection};
use crate::registry::pace::{Retry, jittered};
use crate::source::{Outlet, Source, Stopped};
use peers::Peers;
use wire::{Applications, Instance, hash_code};

/// An instance by application and id.
type Key = (String, String);
type Instances = BTreeMap<Key, Instance>;

/// The registry of one Eureka and its peers.
#[derive(Debug)]
pub struct Eureka {
    id: SourceId,
    options: Options,
    cluster: ClusterId,
    ledger: Ledger,
    instances: Instances,
    /// Instances that the peer does not list but another did, or the same before it failed.
    unlisted: BTreeSet<Key>,
    /// Until when those are kept.
    lenient_until: Option<Instant>,
    /// Something changed that was not published.
    is_changed: bool,
}

/// How the next answer is got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    All,
    Delta,
}

impl Eureka {
    pub fn new(id: SourceId, options: Options, cluster: ClusterId, protection: Protection) -> Eureka {
        let ledger = Ledger::new(protection);
        Eureka {
            id,
            options,
            cluster,
            ledger,
            instances: Instances::new(),
            unlisted: BTreeSet::new(),
            lenient_until: None,
            is_changed: true,
        }
    }

    /// Asks the current peer, then the others in turn. After a failure the whole list is asked for.
    async fn refresh(&mut self, peers: &mut Peers, next: Next) -> Result<Next, String> {
        let mut failures = Vec::new();
        for attempt in 0..peers.len() {
            let next = if attempt == 0 { next } else { Next::All };
            match self.ask(peers, next).await {
                Ok(next) => return Ok(next),
                Err(reason) => failures.push(reason),
            }
            peers.turn();
            self.be_lenient();
        }
        Err(failures.join("; "))
    }

    async fn ask(&mut self, peers: &mut Peers, next: Next) -> Result<Next, String> {
        let delta = if next == Next::Delta { peers.delta().await? } else { None };
        if let Some(delta) = delta {
            if self.apply(delta) {
                return Ok(Next::Delta);
            }
            debug!(registry = &*self.id.0, "the changes do not lead to the server's state: reading all of it");
        }
        let all = peers.all().await?;
        self.replace(all);
        Ok(Next::Delta)
    }

    /// Whoever answers next may not know everything yet.
    fn be_lenient(&mut self) {
        if !self.instances.is_empty() {
            self.lenient_until = Some(Instant::now() + self.options.lease.0);
        }
    }

    /// Lets go of what nobody listed for a lease.
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
        // Whole lists tell the last action too, which is no part of an instance.
        let listed = instances(all).map(|instance| Instance { action_type: String::new(), ..instance });
        let mut fresh: Instances = listed.map(|instance| (key(&instance), instance)).collect();
        self.unlisted.clear();
        if self.lenient_until.is_some() {
            self.unlisted.extend(self.instances.keys().filter(|key| !fresh.contains_key(*key)).cloned());
            let kept = self.unlisted.iter().filter_map(|key| self.instances.remove_entry(key));
            fresh.extend(kept.collect::<Vec<_>>());
        }
        self.is_changed |= fresh != self.instances || !self.unlisted.is_empty();
        self.instances = fresh;
    }

    /// Takes in what changed. The same change may come many times. False where the result is not the server's.
    fn apply(&mut self, delta: Applications) -> bool {
        let expected = delta.hash_code.clone();
        for mut instance in instances(delta) {
            let (key, action) = (key(&instance), std::mem::take(&mut instance.action_type));
            self.unlisted.remove(&key);
            if action == "DELETED" {
                self.is_changed |= self.instances.remove(&key).is_some();
            } else if self.instances.get(&key) != Some(&instance) {
                self.instances.insert(key, instance);
                self.is_changed = true;
            }
        }
        let listed = self.instances.iter().filter(|(key, _)| !self.unlisted.contains(*key));
        hash_code(listed.map(|(_, instance)| instance)) == expected
    }

    async fn publish(&mut self, outlet: &Outlet) -> Result<(), Stopped> {
        self.end_leniency();
        // A loss that is held back is looked at again until it is believed or gone.
        if !std::mem::take(&mut self.is_changed) && self.ledger.held_until().is_none() {
            return Ok(());
        }
        let (listed, problems) = mapping::listings(self.instances.values(), &self.options, &self.cluster);
        self.ledger.replace(listed, Instant::now());
        self.ledger.send_synced(outlet, problems).await
    }
}

fn instances(applications: Applications) -> impl Iterator<Item = Instance> {
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

fn key(instance: &Instance) -> Key {
    (instance.app.to_ascii_uppercase(), instance.id().to_owned())
}

impl Source for Eureka {
    fn id(&self) -> SourceId {
        self.id.clone()
    }

    async fn run(&mut self, outlet: Outlet) -> Result<(), Stopped> {
        let health = outlet.health().clone();
        let mut peers = Peers::new(&self.options, health.clone()).map_err(|e| Stopped::Failed(e.to_string()))?;
        let (mut next, mut retry) = (Next::All, Retry::default());
        loop {
            match self.refresh(&mut peers, next).await {
                Ok(following) => {
                    next = following;
                    retry.succeeded();
                    health.regained();
                    self.publish(&outlet).await?;
                    tokio::time::sleep(jittered(self.options.interval.0)).await;
                }
                Err(reason) => {
                    next = Next::All;
                    health.lost(reason);
                    retry.wait().await;
                }
            }
        }
    }
}
