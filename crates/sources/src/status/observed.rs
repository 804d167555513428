//! Watches the objects that have statuses. Another writer may change a status, and an object that is deleted and created
//! again has none, while the status that we want stays the same.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;

use futures_util::StreamExt as _;
use kube::api::{Api, DynamicObject};
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt as _};
use model::config::{Key, Kind};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tracing::debug;

use super::{FIRST_WAIT, LONGEST_WAIT, resource};
use crate::backoff::Backoff;

/// Objects that are received but not compared yet.
const QUEUE: usize = 64;

/// An object's status at the API server.
pub(super) struct ObservedStatus {
    pub(super) key: Key,
    pub(super) status: Option<Value>,
}

/// One watch for each kind that has statuses.
pub(super) struct StatusWatches {
    client: Client,
    watches: BTreeMap<Kind, AbortHandle>,
    tasks: JoinSet<()>,
    sender: mpsc::Sender<ObservedStatus>,
    received: mpsc::Receiver<ObservedStatus>,
}

impl StatusWatches {
    pub(super) fn new(client: Client) -> StatusWatches {
        let (sender, received) = mpsc::channel(QUEUE);
        StatusWatches { client, watches: BTreeMap::new(), tasks: JoinSet::new(), sender, received }
    }

    /// Watches exactly these kinds.
    pub(super) fn follow(&mut self, kinds: &BTreeSet<Kind>) {
        self.watches.retain(|kind, watch| {
            let is_kept = kinds.contains(kind);
            if !is_kept {
                watch.abort();
            }
            is_kept
        });
        for kind in kinds {
            let watch = || self.tasks.spawn(watch(self.client.clone(), *kind, self.sender.clone()));
            self.watches.entry(*kind).or_insert_with(watch);
        }
        while self.tasks.try_join_next().is_some() {}
    }

    /// The next object that was added or changed.
    pub(super) async fn next(&mut self) -> ObservedStatus {
        match self.received.recv().await {
            Some(found) => found,
            // Never happens: the sender is kept.
            None => std::future::pending().await,
        }
    }

    /// As `next`, if one has arrived.
    pub(super) fn try_next(&mut self) -> Option<ObservedStatus> {
        self.received.try_recv().ok()
    }
}

/// Sends every object of a kind, and again when it changes.
async fn watch(client: Client, kind: Kind, sender: mpsc::Sender<ObservedStatus>) {
    let api: Api<DynamicObject> = Api::all_with(client, &resource(kind));
    let mut events = pin!(watcher::watcher(api, watcher::Config::default()));
    let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
    while let Some(event) = events.next().await {
        let mut object = match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => object,
            Ok(Event::InitDone) => {
                backoff.reset();
                continue;
            }
            Ok(_) => continue,
            Err(error) => {
                debug!(%kind, %error, "could not watch statuses; retrying");
                backoff.wait().await;
                continue;
            }
        };
        let status = object.data.get_mut("status").map(Value::take);
        let namespace = object.namespace().unwrap_or_default();
        let key = Key { kind, namespace: namespace.into(), name: object.name_any().into() };
        if sender.send(ObservedStatus { key, status }).await.is_err() {
            return;
        }
    }
}
