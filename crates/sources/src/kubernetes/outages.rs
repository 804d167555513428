//! Collections that cannot be watched now. Each is told once when that begins and once when it is over, however often
//! the API server is asked in between.

use std::collections::BTreeMap;

use model::change::SourceId;
use tokio::time::Instant;
use tracing::{info, warn};

use super::cluster::Collection;

/// Who cannot be watched, and since when.
#[derive(Debug, Default)]
pub(super) struct Outages(BTreeMap<Collection, Outage>);

#[derive(Debug)]
struct Outage {
    since: Instant,
    /// The API server does not let us see the collection or does not have it: there is nothing to be lost.
    is_refused: bool,
}

impl Outages {
    /// Notes a failure. `is_refused` says that the collection was never seen and is not to be.
    pub(super) fn fail(&mut self, source: &SourceId, collection: &Collection, is_refused: bool, reason: &str) {
        if self.0.contains_key(collection) {
            return;
        }
        match is_refused {
            true => warn!(source = %source.0, %collection, reason, "not watched"),
            false => warn!(source = %source.0, %collection, reason, "could not watch; keeping what is known"),
        }
        self.0.insert(collection.clone(), Outage { since: Instant::now(), is_refused });
    }

    /// Notes that the collection is seen.
    pub(super) fn end(&mut self, source: &SourceId, collection: &Collection) {
        if let Some(outage) = self.0.remove(collection) {
            info!(source = %source.0, %collection, after = ?outage.since.elapsed(), "watched again");
        }
    }

    /// Waits for nothing of a collection that is watched no more.
    pub(super) fn forget(&mut self, collection: &Collection) {
        self.0.remove(collection);
    }

    pub(super) fn is_refused(&self, collection: &Collection) -> bool {
        self.0.get(collection).is_some_and(|outage| outage.is_refused)
    }

    /// Whether something that was seen before is not seen now.
    pub(super) fn hide_something(&self) -> bool {
        self.0.values().any(|outage| !outage.is_refused)
    }
}
