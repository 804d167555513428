//! Secrets stored in files, named `file-root:PATH` or `file-cert:CHAIN~KEY` in Envoy's configuration. `scan` finds the
//! names in relayed configuration, `access` decides which files may be read. SDS serves only what both allow.

pub mod access;
pub(crate) mod scan;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::warn;

/// Prefixes of file secret names.
pub(crate) const ROOT: &str = "file-root:";
pub(crate) const PAIR: &str = "file-cert:";

/// Maximum length of a name: two paths of Linux's maximum length.
pub(crate) const MAX_NAME: usize = 2 * 4096 + PAIR.len() + 1;

/// Maximum number of remembered names.
const MAX_NAMES: usize = 1024;

/// File secret names seen in the configuration. SDS serves no others. Names stay when the configuration drops them: Envoy
/// already had the file. Clones share the names.
#[derive(Clone, Debug, Default)]
pub struct FileSecretNames(Arc<Mutex<RecentNames>>);

#[derive(Debug, Default)]
struct RecentNames {
    /// Each name with the step at which it was last seen.
    last_seen: BTreeMap<Arc<str>, u64>,
    steps: u64,
    was_full: bool,
}

impl FileSecretNames {
    pub(crate) fn add(&self, name: &str) {
        let mut names = self.0.lock();
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
                        "the configuration names too many file secrets; the least recently seen are no longer served"
                    );
                }
            }
        }
        names.last_seen.insert(name.into(), step);
    }

    /// Adds all names in a text: a bootstrap as JSON or YAML.
    pub fn add_from_text(&self, text: &str) {
        let ends = |c: char| matches!(c, '"' | '\'' | ',' | '}' | ']') || c.is_whitespace();
        for prefix in [ROOT, PAIR] {
            for (at, _) in text.match_indices(prefix) {
                let name = text[at..].split(ends).next().unwrap_or_default();
                if name.len() <= MAX_NAME {
                    self.add(name);
                }
            }
        }
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.lock().last_seen.contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use super::{FileSecretNames, MAX_NAMES};

    #[test]
    fn hole_10_names_are_bounded_and_the_newest_are_kept() {
        let names = FileSecretNames::default();
        names.add("file-root:/etc/first");
        for n in 0..10 * MAX_NAMES {
            names.add(&format!("file-root:/etc/{n}"));
            names.add("file-root:/etc/used");
        }
        assert_eq!(names.0.lock().last_seen.len(), MAX_NAMES);
        assert!(names.contains("file-root:/etc/used") && names.contains("file-root:/etc/10239"));
        assert!(!names.contains("file-root:/etc/first"));
    }

    #[test]
    fn names_are_found_in_a_bootstrap() {
        let names = FileSecretNames::default();
        names.add_from_text("{\"name\":\"file-root:/etc/a.pem\",\"x\":1}\nname: file-cert:/etc/b~/etc/c\n");
        assert!(names.contains("file-root:/etc/a.pem") && names.contains("file-cert:/etc/b~/etc/c"));
        assert_eq!(names.0.lock().last_seen.len(), 2);
    }
}
