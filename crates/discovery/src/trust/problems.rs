//! Problems of the CA: published with those of all other sources, one for each topic.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::change::{Batch, Change, SourceId};
use model::problem::{Problem, ProblemCode, Subject};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// What a problem is about; a new problem of the same topic replaces the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Topic {
    Authority,
    RootLifetime,
    IssuerLifetime,
    OwnCertificate,
    OwnLifetime,
    ConfigMaps,
    CrlConfigMaps,
    TokenKeys,
    TrustBundle,
}

/// The current problems.
#[derive(Debug)]
pub(crate) struct TrustProblems {
    changes: mpsc::Sender<Batch>,
    current: Arc<Mutex<BTreeMap<Topic, Problem>>>,
}

impl TrustProblems {
    pub(crate) fn new(changes: mpsc::Sender<Batch>) -> TrustProblems {
        TrustProblems { changes, current: Arc::default() }
    }

    /// Reports a problem. The snapshot writer logs new ones.
    pub(crate) fn error(&self, topic: Topic, message: String) {
        self.set(topic, Some(Problem::error(about(), message).coded(ProblemCode::Certificates)));
    }

    pub(crate) fn warning(&self, topic: Topic, message: String) {
        self.set(topic, Some(Problem::warning(about(), message).coded(ProblemCode::Certificates)));
    }

    pub(crate) fn solved(&self, topic: Topic) {
        self.set(topic, None);
    }

    /// Whether there is a problem of this topic now.
    pub(crate) fn has(&self, topic: Topic) -> bool {
        self.current.lock().contains_key(&topic)
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
        if let Err(TrySendError::Full(_)) = self.changes.try_send(batch(&current)) {
            tokio::spawn(send_later(self.changes.clone(), Arc::clone(&self.current)));
        }
    }
}

/// Waits for room in the channel, then sends the problems of that moment.
async fn send_later(changes: mpsc::Sender<Batch>, current: Arc<Mutex<BTreeMap<Topic, Problem>>>) {
    if let Ok(permit) = changes.reserve().await {
        permit.send(batch(&current.lock()));
    }
}

fn batch(problems: &BTreeMap<Topic, Problem>) -> Batch {
    let problems = problems.values().cloned().collect();
    Batch { source: SourceId("trust".into()), changes: vec![Change::Problems(problems)] }
}

fn about() -> Subject {
    Subject::Setting("certificate authority".into())
}
