//! One waiting question per service: a change costs one answer about that service and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::names::Str;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;

use super::agents::{Agents, CatalogQuery, IndexProgress, IndexStep};
use super::options::ConsulOptions;
use super::schema::{ConsulInstance, ConsulInstances};
use super::{CatalogEvent, instances_of};
use crate::backoff::Backoff;
use crate::registry::poll_interval::PollInterval;

/// Services read at the same time where nothing is waited for: at the start and after a failure.
const AT_ONCE: usize = 16;

/// Watchers by service. A service that is gone must not be asked for: Consul answers such a question on every
/// change of anything.
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
    let (path, parameters) = instances_of(&name, &options);
    let (mut progress, mut backoff, mut poll) =
        (IndexProgress::default(), Backoff::default(), PollInterval::new(options.interval.0));
    let mut there = BTreeSet::new();
    loop {
        poll.ready().await;
        // A question that waits needs no turn: the agent answers it when there is something to say.
        let turn = if progress.index == 0 { turns.acquire().await.ok() } else { None };
        let question = CatalogQuery { path: &path, parameters: &parameters, index: progress.index };
        let outcome =
            agents.ask_whole(question, &mut there, |all: &ConsulInstances| all.0.iter().map(id).collect()).await;
        drop(turn);
        let event = match outcome {
            Ok(answer) => {
                backoff.reset();
                match progress.step(&answer) {
                    IndexStep::Anew => continue,
                    IndexStep::Same => CatalogEvent::Same(name.clone()),
                    IndexStep::New => CatalogEvent::Instances(name.clone(), answer),
                }
            }
            Err(reason) => {
                progress = IndexProgress::default();
                if events.send(CatalogEvent::Unread(name.clone(), reason)).await.is_err() {
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

/// An instance is known by its node and its id there.
fn id(instance: &ConsulInstance) -> String {
    format!("{}/{}", instance.node.node, instance.service.id)
}
