//! Problems of the CA: published with those of all other sources, one for each topic.

use std::collections::BTreeMap;

use model::change::{Batch, Change, SourceId};
use model::problem::{Problem, Subject};
use parking_lot::Mutex;
use tokio::sync::mpsc;

/// What a problem is about; a new problem of the same topic replaces the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Topic {
    Authority,
    RootLifetime,
    IssuerLifetime,
    OwnCertificate,
    OwnLifetime,
    ConfigMaps,
    TokenKeys,
}

/// The current problems.
#[derive(Debug)]
pub(crate) struct TrustProblems {
    changes: mpsc::Sender<Batch>,
    current: Mutex<BTreeMap<Topic, Problem>>,
}

impl TrustProblems {
    pub(crate) fn new(changes: mpsc::Sender<Batch>) -> TrustProblems {
        TrustProblems { changes, current: Mutex::default() }
    }

    /// Reports a problem. The snapshot writer logs new ones.
    pub(crate) fn error(&self, topic: Topic, message: String) {
        self.set(topic, Some(Problem::error(Subject::Setting("certificate authority".into()), message)));
    }

    pub(crate) fn warning(&self, topic: Topic, message: String) {
        self.set(topic, Some(Problem::warning(Subject::Setting("certificate authority".into()), message)));
    }

    pub(crate) fn solved(&self, topic: Topic) {
        self.set(topic, None);
    }

    fn set(&self, topic: Topic, problem: Option<Problem>) {
        let mut current = self.current.lock();
        let before = match problem.clone() {
            Some(problem) => current.insert(topic, problem),
            None => current.remove(&topic),
        };
        if before == problem {
            return;
        }
        let problems = current.values().cloned().collect();
        let batch = Batch { source: SourceId("trust".into()), changes: vec![Change::Problems(problems)] };
        // A full channel means that batches wait; the problem is sent with the next one of its topic.
        if self.changes.try_send(batch).is_err() {
            current.remove(&topic);
        }
    }
}
