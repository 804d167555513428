//! Resources that are computed when a client asks for them by name: once for a class of clients, and limited in total,
//! because clients choose the names.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use api::{Resource, TypeUrl};
use model::names::Namespace;
use model::problem::Problem;
use model::settings::Settings;
use parking_lot::{Mutex, MutexGuard};

use crate::serve::bounded::{LeftOut, Why};
use crate::serve::excess::{self, ClassExcess};
use crate::serve::layers::RouteTable;
use crate::serve::layers::memo::{Entry, LayerRequest};

/// Cached answers. Envoys ask for one route table per port, or one per service and port; others are computed again.
const MOST_KEPT: usize = 20_000;

/// Answers for one class of clients and one snapshot.
#[derive(Debug)]
pub(crate) struct ByName {
    kind: TypeUrl,
    namespace: Namespace,
    settings: Arc<Settings>,
    excess: Option<Arc<ClassExcess>>,
    answers: Mutex<HashMap<Box<str>, Answer>>,
    bytes: AtomicUsize,
}

/// A resource, and the shared results it was computed from, if any.
#[derive(Clone, Debug)]
struct Answer {
    resource: Option<Resource>,
    made_of: Option<Arc<Entry<RouteTable>>>,
}

/// A resource before limits are applied.
#[derive(Debug, Default)]
pub(crate) struct Made {
    pub(crate) resource: Option<Resource>,
    pub(crate) problems: Vec<Problem>,
    pub(crate) made_of: Option<Arc<Entry<RouteTable>>>,
}

impl ByName {
    pub(crate) fn new(
        kind: TypeUrl,
        namespace: Namespace,
        settings: Arc<Settings>,
        excess: Option<Arc<ClassExcess>>,
    ) -> ByName {
        ByName { kind, namespace, settings, excess, answers: Mutex::default(), bytes: AtomicUsize::new(0) }
    }

    /// The resource of this name, computed unless it is cached.
    pub(crate) fn answer(&self, name: &str, make: impl FnOnce() -> Made) -> Option<Resource> {
        if let Some(known) = self.lock().get(name) {
            return known.resource.clone();
        }
        // Computed outside the lock: two clients may compute the same resource, and one result is kept.
        let Made { resource, mut problems, made_of } = make();
        let resource = resource.and_then(|made| self.fitting(made, &mut problems));
        if let Some(excess) = &self.excess {
            excess.set(&self.kind, name, &problems);
        }
        let mut answers = self.lock();
        if answers.len() < MOST_KEPT {
            answers.insert(name.into(), Answer { resource: resource.clone(), made_of });
        }
        resource
    }

    /// Whether all these names have an answer.
    pub(crate) fn has<'a>(&self, names: &mut impl Iterator<Item = &'a str>) -> bool {
        let answers = self.lock();
        names.all(|name| answers.contains_key(name))
    }

    /// Whether all answers are valid for another snapshot.
    pub(crate) fn holds(&self, request: LayerRequest<'_>) -> bool {
        self.lock().values().all(|answer| answer.made_of.as_ref().is_some_and(|made_of| made_of.holds(request)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Answer>> {
        self.answers.lock()
    }

    fn fitting(&self, made: Resource, problems: &mut Vec<Problem>) -> Option<Resource> {
        let knobs = &self.settings.knobs;
        let bytes = made.body.len();
        let why = if bytes > knobs.resource_bytes as usize {
            Why::TooLarge
        } else if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > knobs.push_bytes as usize {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            Why::TooMuch
        } else {
            return Some(made);
        };
        let found = LeftOut { index: 0, name: made.name, bytes, why };
        problems.extend(excess::left_out(&self.kind, &self.namespace, &[found], knobs));
        None
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use api::{Resource, TypeUrl};
    use model::settings::{Knobs, Settings};

    use super::{ByName, Made};

    #[test]
    fn hole_04_answers_are_made_once_and_bounded_in_all() {
        let knobs = Knobs { resource_bytes: 60, push_bytes: 100, ..Knobs::default() };
        let settings = Arc::new(Settings { knobs, ..Settings::default() });
        let named = ByName::new(TypeUrl::ROUTE, "shop".into(), settings, None);
        let made = Cell::new(0);
        let ask = |name: &str, bytes: usize| {
            let make = || {
                made.set(made.get() + 1);
                Made { resource: Some(Resource::encoded(name, vec![0; bytes])), ..Made::default() }
            };
            named.answer(name, make).is_some()
        };
        assert!(!named.has(&mut ["80"].into_iter()), "nothing is computed yet");
        assert!(ask("80", 50) && ask("80", 50) && ask("90", 50));
        assert!(named.has(&mut ["80", "90"].into_iter()) && !named.has(&mut ["80", "99"].into_iter()));
        assert!(!ask("91", 1), "a hundred bytes are all");
        assert!(!ask("92", 61), "sixty bytes are the most for one");
        assert!(ask("80", 50));
        assert_eq!(made.get(), 4);
    }
}
