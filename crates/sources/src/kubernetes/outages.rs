//! Collections that cannot be watched now. Each is told once when that begins and once when it is over, however often
//! the API server is asked in between.

use std::collections::BTreeMap;

use model::change::SourceId;
use model::problem::{Problem, Subject};
use tokio::time::Instant;
use tracing::{info, warn};

use super::join::Collection;

/// Who cannot be watched, and since when.
#[derive(Debug, Default)]
pub(super) struct Outages(BTreeMap<Collection, Outage>);

#[derive(Debug)]
struct Outage {
    since: Instant,
    /// The API server does not let us see the collection or does not have it: there is nothing to be lost.
    is_refused: bool,
    /// What was wrong with an answer.
    wrong_answer: Option<String>,
}

/// Why a collection cannot be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutageCause {
    /// It was never seen and is not to be.
    Refused,
    /// The API server answers what makes no sense.
    BadResponse,
    /// The API server is away or fails.
    Failure,
}

impl Outages {
    /// Notes a failure.
    pub(super) fn fail(&mut self, source: &SourceId, collection: &Collection, cause: OutageCause, reason: &str) {
        let wrong_answer = (cause == OutageCause::BadResponse).then(|| reason.to_owned());
        if let Some(known) = self.0.get_mut(collection) {
            known.wrong_answer = wrong_answer.or(known.wrong_answer.take());
            return;
        }
        let is_refused = cause == OutageCause::Refused;
        match is_refused {
            true => warn!(source = %source.0, %collection, reason, "not watched"),
            false => warn!(source = %source.0, %collection, reason, "could not watch; keeping what is known"),
        }
        self.0.insert(collection.clone(), Outage { since: Instant::now(), is_refused, wrong_answer });
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

    /// Collections with wrong answers. Those of an API server that is away are for the health of the source to tell.
    pub(super) fn problems(&self, cluster: &str) -> impl Iterator<Item = Problem> {
        self.0.iter().filter_map(move |(collection, outage)| {
            let reason = outage.wrong_answer.as_ref()?;
            let message = format!("could not watch {collection}: the API server gives {reason}; keeping what is known");
            Some(Problem::warning(Subject::Cluster(cluster.into()), message))
        })
    }

    /// Whether something that was seen before is not seen now.
    pub(super) fn hide_something(&self) -> bool {
        self.0.values().any(|outage| !outage.is_refused)
    }
}
