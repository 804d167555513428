//! Keys of what one registry has published, so that its services can be removed when the registry is.

use std::collections::BTreeSet;

use model::change::{Batch, Change};
use model::config::Key;
use model::names::ServiceKey;
use tokio::sync::mpsc;

/// Services and config objects that a registry has published and not deleted.
#[derive(Clone, Debug, Default)]
pub(super) struct PublishedKeys {
    pub(super) services: BTreeSet<ServiceKey>,
    objects: BTreeSet<Key>,
}

impl PublishedKeys {
    fn record(&mut self, change: &Change) {
        match change {
            Change::ServiceApplied(service) => _ = self.services.insert(service.key()),
            Change::ServiceDeleted(key) => _ = self.services.remove(key),
            Change::Applied(object) => _ = self.objects.insert(object.key()),
            Change::Deleted(key) => _ = self.objects.remove(key),
            _ => {}
        }
    }

    /// Keys in `self` that are not in `other`.
    fn without(&self, other: &PublishedKeys) -> PublishedKeys {
        PublishedKeys {
            services: self.services.difference(&other.services).cloned().collect(),
            objects: self.objects.difference(&other.objects).cloned().collect(),
        }
    }

    /// Changes that delete all of them.
    pub(super) fn deletions(self) -> Vec<Change> {
        let both = |key: ServiceKey| [Change::Endpoints(key.clone(), Vec::new()), Change::ServiceDeleted(key)];
        let services = self.services.into_iter().flat_map(both);
        services.chain(self.objects.into_iter().map(Change::Deleted)).collect()
    }
}

/// Forwards the batches of a registry and returns what it has published when it stops. Keys that its predecessor
/// published and it did not are deleted when it is in sync.
pub(super) async fn forward(
    mut inbox: mpsc::Receiver<Batch>,
    batches: mpsc::Sender<Batch>,
    predecessor: PublishedKeys,
) -> PublishedKeys {
    let (mut predecessor, mut published) = (Some(predecessor), PublishedKeys::default());
    while let Some(mut batch) = inbox.recv().await {
        batch.changes.iter().for_each(|change| published.record(change));
        if batch.changes.iter().any(|change| matches!(change, Change::Synced)) {
            let old = predecessor.take().map(|before| before.without(&published)).unwrap_or_default();
            batch.changes.splice(0..0, old.deletions());
        }
        if batches.send(batch).await.is_err() {
            break;
        }
    }
    // A registry that was never in sync leaves its predecessor's services in place.
    let PublishedKeys { services, objects } = predecessor.unwrap_or_default();
    published.services.extend(services);
    published.objects.extend(objects);
    published
}
