//! The source: polls Copilot and publishes the differences. Copilot keeps no state on disk, so routes that it does not
//! list after an outage are kept until it had time to learn them.

use std::collections::BTreeMap;

use model::change::{Change, SourceId};
use model::config::{Key, Object};
use model::names::ClusterId;
use model::problem::{Problem, Subject};
use tokio::time::Instant;

use super::copilot::CopilotClient;
use super::mapping;
use super::options::CloudFoundryOptions;
use super::route_table::RouteTable;
use super::rules;
use crate::backoff::{Backoff, jittered};
use crate::registry::adapter::SourcePlace;
use crate::registry::diff::RegistryDiff;
use crate::source::{ChangeSender, Source, SourceError};

/// The source of one Copilot.
#[derive(Debug)]
pub struct CloudFoundryRegistry {
    id: SourceId,
    options: CloudFoundryOptions,
    cluster: ClusterId,
    diff: RegistryDiff,
    /// The published routes, and the rules generated from them.
    published: RouteTable,
    rules: BTreeMap<Key, Object>,
    /// Whether Copilot could not be reached since the last successful poll.
    was_unreachable: bool,
    /// Until when unlisted routes are kept.
    lenient_until: Option<Instant>,
}

impl CloudFoundryRegistry {
    pub fn new(options: CloudFoundryOptions, place: SourcePlace) -> CloudFoundryRegistry {
        let SourcePlace { id, cluster, guard } = place;
        CloudFoundryRegistry {
            id,
            options,
            cluster,
            diff: RegistryDiff::new(guard),
            published: RouteTable::default(),
            rules: BTreeMap::new(),
            was_unreachable: false,
            lenient_until: None,
        }
    }

    async fn publish(
        &mut self,
        mut routes: RouteTable,
        copilot: &CopilotClient,
        sender: &ChangeSender,
    ) -> Result<(), SourceError> {
        let now = Instant::now();
        let about = || Subject::Source(format!("Copilot at {}", self.options.address).into());
        let mut problems: Vec<Problem> =
            copilot.certificate_error().map(|e| Problem::warning(about(), e)).into_iter().collect();
        if std::mem::take(&mut self.was_unreachable) && !self.published.is_empty() {
            self.lenient_until = Some(now + self.options.resync.0);
        }
        self.lenient_until = self.lenient_until.filter(|until| *until > now);
        if self.lenient_until.is_some() {
            let kept = routes.keep(&self.published);
            let resync = self.options.resync.0;
            let message =
                format!("does not list {kept} routes that it had before an outage; keeping them for {resync:?}");
            problems.extend((kept > 0).then(|| Problem::warning(about(), message)));
        }
        let (listed, service_problems) = mapping::listings(&routes, &self.options, &self.cluster);
        let (rules, rule_problems) = rules::rules(&routes, &self.options);
        if self.diff.replace(listed, now) {
            self.replace_rules(rules);
            self.published = routes;
        }
        problems.extend(service_problems.into_iter().chain(rule_problems));
        self.diff.send_synced(sender, problems).await
    }

    fn replace_rules(&mut self, rules: BTreeMap<Key, Object>) {
        for key in self.rules.keys().filter(|key| !rules.contains_key(*key)) {
            self.diff.add_change(Change::Deleted(key.clone()));
        }
        for (key, object) in &rules {
            if self.rules.get(key) != Some(object) {
                self.diff.add_change(Change::Applied(object.clone()));
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
        let mut copilot =
            CopilotClient::new(&self.options, health.clone()).map_err(|e| SourceError::Failed(e.to_string()))?;
        let mut backoff = Backoff::default();
        loop {
            let started = Instant::now();
            match copilot.routes(!self.published.internal.is_empty()).await {
                Ok(routes) => {
                    backoff.reset();
                    health.mark_reachable();
                    self.publish(routes, &copilot, &sender).await?;
                    tokio::time::sleep(jittered(self.options.interval.0.max(started.elapsed()))).await;
                }
                Err(error) => {
                    self.was_unreachable = true;
                    health.mark_unreachable(error.to_string());
                    backoff.wait().await;
                }
            }
        }
    }
}
