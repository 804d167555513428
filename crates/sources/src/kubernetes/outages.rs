//! Collections that cannot be watched now. Each outage is logged once when it begins and once when it ends, not with
//! every retry.

use std::collections::BTreeMap;

use model::change::SourceId;
use model::problem::{Problem, Subject};
use tokio::time::Instant;
use tracing::{info, warn};

use super::collection::Collection;

/// The current outages of one cluster.
#[derive(Debug, Default)]
pub(super) struct Outages(BTreeMap<Collection, Outage>);

#[derive(Debug)]
struct Outage {
    since: Instant,
    /// The collection is forbidden or does not exist, and was never listed: no known objects can be stale.
    is_refused: bool,
    /// The last bad response.
    bad_response: Option<String>,
}

/// Why a collection cannot be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutageCause {
    /// 403 or 404 for the first list.
    Refused,
    /// The response is malformed or exceeds a limit.
    BadResponse,
    /// The API server cannot be reached or returns an error.
    Failure,
}

impl Outages {
    /// Records a failure.
    pub(super) fn begin(&mut self, source: &SourceId, collection: &Collection, cause: OutageCause, reason: &str) {
        let bad_response = (cause == OutageCause::BadResponse).then(|| reason.to_owned());
        if let Some(known) = self.0.get_mut(collection) {
            known.bad_response = bad_response.or(known.bad_response.take());
            return;
        }
        let is_refused = cause == OutageCause::Refused;
        match is_refused {
            true => {
                warn!(source = %source.0, %collection, reason, "collection is not watched (forbidden or unknown); retrying");
            }
            false => {
                warn!(source = %source.0, %collection, reason, "could not watch collection; keeping known objects");
            }
        }
        self.0.insert(collection.clone(), Outage { since: Instant::now(), is_refused, bad_response });
    }

    /// Records that the collection can be watched.
    pub(super) fn end(&mut self, source: &SourceId, collection: &Collection) {
        if let Some(outage) = self.0.remove(collection) {
            info!(source = %source.0, %collection, after = ?outage.since.elapsed(), "collection is watched again");
        }
    }

    /// Drops the outage of a collection that is no longer watched.
    pub(super) fn forget(&mut self, collection: &Collection) {
        self.0.remove(collection);
    }

    pub(super) fn is_refused(&self, collection: &Collection) -> bool {
        self.0.get(collection).is_some_and(|outage| outage.is_refused)
    }

    /// Problems for bad responses. An unreachable API server is reported by the health of the source instead.
    pub(super) fn problems(&self, cluster: &str) -> impl Iterator<Item = Problem> {
        self.0.iter().filter_map(move |(collection, outage)| {
            let reason = outage.bad_response.as_ref()?;
            let message = format!(
                "could not watch {collection}: bad response of the API server: {reason}; keeping known objects"
            );
            Some(Problem::warning(Subject::Cluster(cluster.into()), message))
        })
    }

    /// Whether a collection that was listed before cannot be watched now.
    pub(super) fn has_failures(&self) -> bool {
        self.0.values().any(|outage| !outage.is_refused)
    }
}
