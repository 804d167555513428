//! The Cloud Foundry registry: routes and internal routes, as the platform's Copilot tells them when asked.
//! Copilot keeps nothing on disk, so what one that was away does not list is kept until it had time to learn it.

mod copilot;
mod mapping;
mod options;
mod route_table;
mod rules;
pub mod schema;

pub use options::CloudFoundryOptions;

use std::collections::BTreeMap;

use model::change::{Change, SourceId};
use model::config::{Key, Object};
use model::names::ClusterId;
use model::problem::{Problem, Subject};
use tokio::time::Instant;

use crate::backoff::{Backoff, jittered};
use crate::registry::diff::{MassLossGuard, RegistryDiff};
use crate::source::{ChangeSender, Source, SourceError};
use copilot::CopilotClient;
use route_table::RouteTable;

/// The registry of one Copilot.
#[derive(Debug)]
pub struct CloudFoundryRegistry {
    id: SourceId,
    options: CloudFoundryOptions,
    cluster: ClusterId,
    diff: RegistryDiff,
    /// What was told last, and the rules that came of it.
    told: RouteTable,
    rules: BTreeMap<Key, Object>,
    /// Copilot was away since it was last read.
    was_away: bool,
    /// Until when routes are kept that Copilot does not list.
    lenient_until: Option<Instant>,
}

impl CloudFoundryRegistry {
    pub fn new(
        id: SourceId,
        options: CloudFoundryOptions,
        cluster: ClusterId,
        guard: MassLossGuard,
    ) -> CloudFoundryRegistry {
        CloudFoundryRegistry {
            id,
            options,
            cluster,
            diff: RegistryDiff::new(guard),
            told: RouteTable::default(),
            rules: BTreeMap::new(),
            was_away: false,
            lenient_until: None,
        }
    }

    async fn publish(
        &mut self,
        mut seen: RouteTable,
        copilot: &CopilotClient,
        sender: &ChangeSender,
    ) -> Result<(), SourceError> {
        let now = Instant::now();
        let about = || Subject::Source(format!("Copilot at {}", self.options.address).into());
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
        if self.diff.replace(listed, now) {
            self.replace_rules(rules);
            self.told = seen;
        }
        problems.extend(of_services.into_iter().chain(of_rules));
        self.diff.send_synced(sender, problems).await
    }

    fn replace_rules(&mut self, rules: BTreeMap<Key, Object>) {
        for key in self.rules.keys().filter(|key| !rules.contains_key(*key)) {
            self.diff.tell(Change::Deleted(key.clone()));
        }
        for (key, object) in &rules {
            if self.rules.get(key) != Some(object) {
                self.diff.tell(Change::Applied(object.clone()));
            }
        }
        self.rules = rules;
    }
}

impl Source for CloudFoundryRegistry {
    fn id(&self) -> SourceId {
        self.id.clone()
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        let health = sender.health().clone();
        let mut copilot = CopilotClient::new(&self.options, health.clone()).map_err(SourceError::Failed)?;
        let mut backoff = Backoff::default();
        loop {
            let begun = Instant::now();
            match copilot.route_table(!self.told.internal.is_empty()).await {
                Ok(seen) => {
                    backoff.reset();
                    health.mark_reachable();
                    self.publish(seen, &copilot, &sender).await?;
                    tokio::time::sleep(jittered(self.options.interval.0.max(begun.elapsed()))).await;
                }
                Err(reason) => {
                    self.was_away = true;
                    health.mark_unreachable(reason);
                    backoff.wait().await;
                }
            }
        }
    }
}
