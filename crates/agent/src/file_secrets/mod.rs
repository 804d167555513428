//! Secrets in files that Envoy's configuration names (`file-root:PATH`, `file-cert:CHAIN~KEY`): `scan` finds the names
//! in configuration on its way to Envoy, `access` decides which files may be read. SDS serves what both allow.

pub mod access;
pub(crate) mod scan;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::warn;

/// How names of secrets in files begin.
pub(crate) const ROOT: &str = "file-root:";
pub(crate) const PAIR: &str = "file-cert:";

/// The longest name: two of the longest paths that Linux knows.
pub(crate) const MAX_NAME: usize = 2 * 4096 + PAIR.len() + 1;

/// Names that are remembered. Each is a file that a Gateway or DestinationRule of the mesh names and this proxy has.
const MAX_NAMES: usize = 1024;

/// Names that the configuration held so far, shared by all who learn and ask. A client of the SDS socket gets no other
/// file. They are remembered when the configuration drops them: a file that Envoy was once given is no secret to it.
#[derive(Clone, Debug, Default)]
pub struct FileSecretNames(Arc<Mutex<RecentNames>>);

#[derive(Debug, Default)]
struct RecentNames {
    /// With the step at which each was last seen.
    last_seen: BTreeMap<Arc<str>, u64>,
    steps: u64,
    was_full: bool,
}

impl FileSecretNames {
    pub(crate) fn learn(&self, name: &str) {
        let mut names = self.names();
        names.steps += 1;
        let step = names.steps;
        if let Some(last) = names.last_seen.get_mut(name) {
            *last = step;
            return;
        }
        if names.last_seen.len() >= MAX_NAMES {
            let oldest = names.last_seen.iter().min_by_key(|(_, step)| **step).map(|(name, _)| Arc::clone(name));
            if let Some(oldest) = oldest {
                names.last_seen.remove(&oldest);
                let is_first = !std::mem::replace(&mut names.was_full, true);
                if is_first {
                    warn!(
                        names = MAX_NAMES, forgotten = %oldest,
                        "configuration names too many secrets in files; those not seen for longest are no longer served"
                    );
                }
            }
        }
        names.last_seen.insert(name.into(), step);
    }

    /// Learns all names that stand in a text: a bootstrap as JSON or YAML.
    pub fn learn_from_text(&self, text: &str) {
        let ends = |c: char| matches!(c, '"' | '\'' | ',' | '}' | ']') || c.is_whitespace();
        for prefix in [ROOT, PAIR] {
            for (at, _) in text.match_indices(prefix) {
                let name = text[at..].split(ends).next().unwrap_or_default();
                if name.len() <= MAX_NAME {
                    self.learn(name);
                }
            }
        }
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.names().last_seen.contains_key(name)
    }

    fn names(&self) -> MutexGuard<'_, RecentNames> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{FileSecretNames, MAX_NAMES};

    #[test]
    fn hole_10_names_are_bounded_and_the_newest_are_kept() {
        let names = FileSecretNames::default();
        names.learn("file-root:/etc/first");
        for n in 0..10 * MAX_NAMES {
            names.learn(&format!("file-root:/etc/{n}"));
            names.learn("file-root:/etc/used");
        }
        assert_eq!(names.names().last_seen.len(), MAX_NAMES);
        assert!(names.contains("file-root:/etc/used") && names.contains("file-root:/etc/10239"));
        assert!(!names.contains("file-root:/etc/first"));
    }

    #[test]
    fn names_are_found_in_a_bootstrap() {
        let names = FileSecretNames::default();
        names.learn_from_text("{\"name\":\"file-root:/etc/a.pem\",\"x\":1}\nname: file-cert:/etc/b~/etc/c\n");
        assert!(names.contains("file-root:/etc/a.pem") && names.contains("file-cert:/etc/b~/etc/c"));
        assert_eq!(names.names().last_seen.len(), 2);
    }
}
