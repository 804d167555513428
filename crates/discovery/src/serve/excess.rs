//! Problems of classes of clients, reported as long as a client of the class is connected: resources that are not sent
//! because they exceed a limit, and proxies without certificates.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use api::TypeUrl;
use model::change::{Batch, Change, SourceId};
use model::problem::{Problem, ProblemCode, Subject};
use model::settings::Knobs;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc;

use crate::serve::bounded::{LeftOut, Why};

/// Problems reported at most; a mesh may have thousands of filters that exceed a limit.
const MOST_REPORTED: usize = 200;
/// Resources of one type that are listed for a class of clients.
const MOST_NAMED: usize = 10;

/// Problems of all classes.
#[derive(Debug)]
pub struct Excesses {
    changes: mpsc::Sender<Batch>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// By class, type and requested name.
    problems: BTreeMap<(u64, TypeUrl, Arc<str>), Vec<Problem>>,
    classes: u64,
    sent: Vec<Problem>,
}

/// Problems of one class of clients; dropped with it.
#[derive(Debug)]
pub struct ClassExcess {
    class: u64,
    /// True once a problem was reported.
    is_used: AtomicBool,
    all: Arc<Excesses>,
}

impl Excesses {
    /// Problems are sent to the snapshot writer as changes.
    pub fn new(changes: mpsc::Sender<Batch>) -> Arc<Excesses> {
        Arc::new(Excesses { changes, known: Mutex::default() })
    }

    /// The reporter of a new class.
    pub fn class(self: &Arc<Self>) -> Arc<ClassExcess> {
        let mut known = self.lock();
        known.classes += 1;
        Arc::new(ClassExcess { class: known.classes, is_used: AtomicBool::new(false), all: self.clone() })
    }

    /// Sends the list of problems if it changed.
    fn send(&self, known: &mut Known) {
        let all = known.problems.values().flatten();
        let distinct: BTreeMap<_, &Problem> = all.map(|p| ((&p.about, &p.message), p)).collect();
        let mut problems: Vec<Problem> = distinct.values().take(MOST_REPORTED).map(|p| (*p).clone()).collect();
        if distinct.len() > MOST_REPORTED {
            let message = format!("{} further objects exceed limits", distinct.len() - MOST_REPORTED);
            problems.push(Problem::error(Subject::Setting("limits".into()), message).coded(ProblemCode::Limit));
        }
        if problems != known.sent {
            let batch = Batch { source: SourceId("clients".into()), changes: vec![Change::Problems(problems.clone())] };
            // If the channel is full, the next report sends the list again.
            if self.changes.try_send(batch).is_ok() {
                known.sent = problems;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }
}

impl ClassExcess {
    /// Replaces the problems of one type, or of the resource of this name.
    pub fn set(&self, kind: &TypeUrl, name: &str, problems: &[Problem]) {
        if problems.is_empty() && !self.is_used.load(Ordering::Relaxed) {
            return;
        }
        self.is_used.store(true, Ordering::Relaxed);
        let problems = problems.to_vec();
        let mut known = self.all.lock();
        let key = (self.class, kind.clone(), Arc::from(name));
        let before = if problems.is_empty() {
            known.problems.remove(&key)
        } else {
            known.problems.insert(key.clone(), problems)
        };
        if before.as_ref() != known.problems.get(&key) {
            self.all.send(&mut known);
        }
    }
}

impl Drop for ClassExcess {
    fn drop(&mut self) {
        let mut known = self.all.lock();
        let before = known.problems.len();
        let class = self.class;
        known.problems.retain(|(of, _, _), _| *of != class);
        if known.problems.len() != before {
            self.all.send(&mut known);
        }
    }
}

/// Problems for resources that are not sent.
pub(crate) fn left_out(kind: &TypeUrl, namespace: &str, left_out: &[LeftOut], knobs: &Knobs) -> Vec<Problem> {
    let mut problems: Vec<Problem> = Vec::new();
    for found in left_out.iter().take(MOST_NAMED) {
        let limit = match found.why {
            Why::TooLarge => format!("the limit is {} (PILOTAGE_RESOURCE_BYTES)", knobs.resource_bytes),
            Why::TooMuch => format!(
                "all resources of its type exceed {} bytes (PILOTAGE_PUSH_BYTES), so the largest are left out",
                knobs.push_bytes
            ),
        };
        let message = format!(
            "not sent to proxies of namespace {namespace}: it has {} bytes, and {limit}; import fewer services with a \
             Sidecar, shorten its configuration, or raise the limit",
            found.bytes
        );
        let about = Subject::Resource { kind: kind.short().into(), name: (*found.name).into(), others: 0 };
        problems.push(Problem::error(about, message).coded(ProblemCode::Limit));
    }
    if left_out.len() > MOST_NAMED {
        let message = format!(
            "{} further resources are not sent to proxies of namespace {namespace}: together they exceed {} bytes \
             (PILOTAGE_PUSH_BYTES), or each {} (PILOTAGE_RESOURCE_BYTES)",
            left_out.len() - MOST_NAMED,
            knobs.push_bytes,
            knobs.resource_bytes
        );
        let about = Subject::ResourceType(kind.short().into());
        problems.push(Problem::error(about, message).coded(ProblemCode::Limit));
    }
    problems
}

#[cfg(test)]
mod tests {
    use api::TypeUrl;
    use model::change::Change;
    use model::problem::{Problem, Subject};
    use tokio::sync::mpsc;

    use super::Excesses;

    #[test]
    fn problems_are_sent_once_and_end_with_their_class() {
        let (changes, mut sent) = mpsc::channel(10);
        let excesses = Excesses::new(changes);
        let (one, two) = (excesses.class(), excesses.class());
        let problem = || vec![Problem::error(Subject::Source("EnvoyFilter shop/big".into()), "too much")];
        for class in [&one, &two, &one] {
            class.set(&TypeUrl::LISTENER, "", &problem());
        }
        let mut next = || match sent.try_recv().ok()?.changes.remove(0) {
            Change::Problems(list) => Some(list),
            other => panic!("{other:?}"),
        };
        assert_eq!((next(), next()), (Some(problem()), None));
        one.set(&TypeUrl::LISTENER, "", &[]);
        assert_eq!(next(), None, "the other class still has it");
        drop(two);
        assert_eq!(next(), Some(Vec::new()));
    }
}
