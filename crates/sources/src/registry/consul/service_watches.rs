//! One blocking query per service: a change costs one response about that service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::names::Str;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;

use super::agents::{Agents, CatalogQuery, IndexProgress, IndexStep};
use super::catalog_event::{CatalogEvent, instances_query};
use super::options::ConsulOptions;
use super::schema::{ConsulInstance, ConsulInstances};
use crate::backoff::Backoff;
use crate::registry::poll_interval::PollInterval;

/// Concurrent non-blocking queries, which are made at the start and after a failure.
const AT_ONCE: usize = 16;

/// Watchers by service. A removed service must not be watched: Consul answers a blocking query for an unknown service
/// on every change of the catalog.
#[derive(Debug)]
pub(super) struct ServiceWatches {
    watchers: BTreeMap<Str, Watcher>,
    turns: Arc<Semaphore>,
}

#[derive(Debug)]
struct Watcher(AbortHandle);

impl Drop for Watcher {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Default for ServiceWatches {
    fn default() -> ServiceWatches {
        ServiceWatches { watchers: BTreeMap::new(), turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

impl ServiceWatches {
    pub(super) fn follow(
        &mut self,
        names: &BTreeSet<Str>,
        agents: &Arc<Agents>,
        events: &mpsc::Sender<CatalogEvent>,
        options: &ConsulOptions,
    ) {
        self.watchers.retain(|name, watcher| names.contains(name) && !watcher.0.is_finished());
        for name in names {
            self.watchers.entry(name.clone()).or_insert_with(|| {
                let task = watch(name.clone(), agents.clone(), events.clone(), self.turns.clone(), options.clone());
                Watcher(tokio::spawn(task).abort_handle())
            });
        }
    }
}

async fn watch(
    name: Str,
    agents: Arc<Agents>,
    events: mpsc::Sender<CatalogEvent>,
    turns: Arc<Semaphore>,
    options: ConsulOptions,
) {
    let (path, parameters) = instances_query(&name, &options);
    let (mut progress, mut backoff, mut poll) =
        (IndexProgress::default(), Backoff::default(), PollInterval::new(options.interval.0));
    let mut known = BTreeSet::new();
    loop {
        poll.ready().await;
        // A blocking query costs the agent nothing until there is a change, so it needs no turn.
        let turn = if progress.index == 0 { turns.acquire().await.ok() } else { None };
        let query = CatalogQuery { path: &path, parameters: &parameters, index: progress.index };
        let outcome =
            agents.query_complete(query, &mut known, |all: &ConsulInstances| all.0.iter().map(id).collect()).await;
        drop(turn);
        let event = match outcome {
            Ok(response) => {
                backoff.reset();
                match progress.step(&response) {
                    IndexStep::Restart => continue,
                    IndexStep::Unchanged => CatalogEvent::Unchanged(name.clone()),
                    IndexStep::New => CatalogEvent::Instances(name.clone(), response),
                }
            }
            Err(error) => {
                progress = IndexProgress::default();
                if events.send(CatalogEvent::Failed(name.clone(), error)).await.is_err() {
                    return;
                }
                backoff.wait().await;
                continue;
            }
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
}

/// Instance ids are unique on their node only.
fn id(instance: &ConsulInstance) -> String {
    format!("{}/{}", instance.node.node, instance.service.id)
}
