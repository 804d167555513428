//! One waiting question per service: a change costs one answer about that service and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::names::Str;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;

use super::agents::{Agents, Progress, Question, Step};
use super::options::Options;
use super::wire::{Instance, Instances};
use super::{Seen, instances_of};
use crate::registry::pace::{Pace, Retry};

/// Services read at the same time where nothing is waited for: at the start and after a failure.
const AT_ONCE: usize = 16;

/// Watchers by service. A service that is gone must not be asked for: Consul answers such a question on every
/// change of anything.
#[derive(Debug)]
pub(super) struct Each {
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

impl Default for Each {
    fn default() -> Each {
        Each { watchers: BTreeMap::new(), turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

impl Each {
    pub(super) fn follow(
        &mut self,
        names: &BTreeSet<Str>,
        agents: &Arc<Agents>,
        events: &mpsc::Sender<Seen>,
        options: &Options,
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

async fn watch(name: Str, agents: Arc<Agents>, events: mpsc::Sender<Seen>, turns: Arc<Semaphore>, options: Options) {
    let (path, parameters) = instances_of(&name, &options);
    let (mut progress, mut retry, mut pace) = (Progress::default(), Retry::default(), Pace::new(options.interval.0));
    let mut there = BTreeSet::new();
    loop {
        pace.turn().await;
        // A question that waits needs no turn: the agent answers it when there is something to say.
        let turn = if progress.index == 0 { turns.acquire().await.ok() } else { None };
        let question = Question { path: &path, parameters: &parameters, index: progress.index };
        let outcome = agents.ask_whole(question, &mut there, |all: &Instances| all.0.iter().map(id).collect()).await;
        drop(turn);
        let event = match outcome {
            Ok(answer) => {
                retry.succeeded();
                match progress.step(&answer) {
                    Step::Anew => continue,
                    Step::Same => Seen::Same(name.clone()),
                    Step::New => Seen::Instances(name.clone(), answer),
                }
            }
            Err(reason) => {
                progress = Progress::default();
                if events.send(Seen::Unread(name.clone(), reason)).await.is_err() {
                    return;
                }
                retry.wait().await;
                continue;
            }
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
}

/// An instance is known by its node and its id there.
fn id(instance: &Instance) -> String {
    format!("{}/{}", instance.node.node, instance.service.id)
}
