//! The Cloud Foundry registry: routes and internal routes, as the platform's Copilot tells them when asked.
//! Copilot keeps nothing on disk, so what one that was away does not list is kept until it had time to learn it.

mod copilot;
mod mapping;
mod options;
mod picture;
mod rules;
pub mod wire;

pub use options::Options;

use std::collections::BTreeMap;

use model::change::{Change, SourceId};
use model::config::{Key, Object};
use model::names::ClusterId;
use model::problem::Problem;
use tokio::time::Instant;

use crate::registry::ledger::{Ledger, Protection};
use crate::registry::pace::{Retry, jittered};
use crate::source::{ChangeSender, Source, SourceError};
use copilot::Copilot;
use picture::Picture;

/// The registry of one Copilot.
#[derive(Debug)]
pub struct CloudFoundry {
    id: SourceId,
    options: Options,
    cluster: ClusterId,
    ledger: Ledger,
    /// What was told last, and the rules that came of it.
    told: Picture,
    rules: BTreeMap<Key, Object>,
    /// Copilot was away since it was last read.
    was_away: bool,
    /// Until when routes are kept that Copilot does not list.
    lenient_until: Option<Instant>,
}

impl CloudFoundry {
    pub fn new(id: SourceId, options: Options, cluster: ClusterId, protection: Protection) -> CloudFoundry {
        CloudFoundry {
            id,
            options,
            cluster,
            ledger: Ledger::new(protection),
            told: Picture::default(),
            rules: BTreeMap::new(),
            was_away: false,
            lenient_until: None,
        }
    }

    async fn publish(
        &mut self,
        mut seen: Picture,
        copilot: &Copilot,
        sender: &ChangeSender,
    ) -> Result<(), SourceError> {
        let now = Instant::now();
        let about = || format!("Copilot at {}", self.options.address);
        let mut problems: Vec<Problem> =
            copilot.complaint().map(|c| Problem::warning(about(), c)).into_iter().collect();
        if std::mem::take(&mut self.was_away) && !self.told.is_empty() {
            self.lenient_until = Some(now + self.options.resync.0);
        }
        self.lenient_until = self.lenient_until.filter(|until| *until > now);
        if self.lenient_until.is_some() {
            let kept = seen.keep(&self.told);
            let message = format!("was away and does not list {kept} routes that it had: they are kept for a while");
            problems.extend((kept > 0).then(|| Problem::warning(about(), message)));
        }
        let (listed, of_services) = mapping::listings(&seen, &self.options, &self.cluster);
        let (rules, of_rules) = rules::rules(&seen, &self.options);
        if self.ledger.replace(listed, now) {
            self.replace_rules(rules);
            self.told = seen;
        }
        problems.extend(of_services.into_iter().chain(of_rules));
        self.ledger.send_synced(sender, problems).await
    }

    fn replace_rules(&mut self, rules: BTreeMap<Key, Object>) {
        for key in self.rules.keys().filter(|key| !rules.contains_key(*key)) {
            self.ledger.tell(Change::Deleted(key.clone()));
        }
        for (key, object) in &rules {
            if self.rules.get(key) != Some(object) {
                self.ledger.tell(Change::Applied(object.clone()));
            }
        }
        self.rules = rules;
    }
}

impl Source for CloudFoundry {
    fn id(&self) -> SourceId {
        self.id.clone()
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        let health = sender.health().clone();
        let mut copilot = Copilot::new(&self.options, health.clone()).map_err(SourceError::Failed)?;
        let mut retry = Retry::default();
        loop {
            let begun = Instant::now();
            match copilot.picture(!self.told.internal.is_empty()).await {
                Ok(seen) => {
                    retry.succeeded();
                    health.regained();
                    self.publish(seen, &copilot, &sender).await?;
                    tokio::time::sleep(jittered(self.options.interval.0.max(begun.elapsed()))).await;
                }
                Err(reason) => {
                    self.was_away = true;
                    health.lost(reason);
                    retry.wait().await;
                }
            }
        }
    }
}
