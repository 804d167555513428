//! `--meshConfig` and `--networksConfig`: mesh-wide settings, each in a watched file.
//! A file that is missing at the start means defaults. Later the last valid settings stay in use until the file holds
//! valid ones again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use api::istio::mesh::v1alpha1::{MeshConfig, MeshNetworks};
use model::change::{Change, SourceId};
use model::config::mesh::{parse_mesh, parse_networks};
use model::hashed::Hashed;
use model::problem::{FileLocation, Problem, ProblemCode, Severity, Subject};

use crate::source::{ChangeSender, Source, SourceError, panic_text};
use crate::watched_file::{FileState, WatchedFile};

const KEEPING: &str = "; keeping the last good version";

/// Parses text over the defaults; the second argument is the file name, for problems.
type ParseSettings<T> = fn(&str, &str) -> (Hashed<T>, Vec<Problem>);

/// A source that reads settings from one file.
pub struct SettingsFile<T> {
    source: &'static str,
    file: WatchedFile,
    parse: ParseSettings<T>,
    change: fn(Hashed<T>) -> Change,
    /// The settings that were sent last.
    published: Option<Hashed<T>>,
    /// The content that they were parsed from; `None` for defaults.
    bytes: Option<Vec<u8>>,
    problems: Vec<Problem>,
}

/// Reads MeshConfig from a file.
pub fn mesh_config(path: &Path) -> SettingsFile<MeshConfig> {
    SettingsFile::new("meshConfig", path, parse_mesh, Change::Mesh)
}

/// Reads MeshNetworks from a file.
pub fn networks(path: &Path) -> SettingsFile<MeshNetworks> {
    SettingsFile::new("networksConfig", path, parse_networks, Change::Networks)
}

impl<T> SettingsFile<T> {
    fn new(
        source: &'static str,
        path: &Path,
        parse: ParseSettings<T>,
        change: fn(Hashed<T>) -> Change,
    ) -> SettingsFile<T> {
        SettingsFile {
            source,
            file: WatchedFile::new(path),
            parse,
            change,
            published: None,
            bytes: None,
            problems: Vec::new(),
        }
    }

    /// The changes that a read causes; `None` if the file should be read again soon.
    fn apply(&mut self, state: FileState) -> Option<Vec<Change>> {
        match state {
            FileState::Unsettled => None,
            FileState::Bytes { bytes, .. } if self.bytes.as_ref() == Some(&bytes) && self.published.is_some() => {
                Some(Vec::new())
            }
            FileState::Bytes { bytes, is_young } => self.apply_bytes(bytes, is_young),
            FileState::Absent if self.published.is_none() => {
                let (value, _) = (self.parse)("", &self.name());
                Some(self.publish(Some(value), Vec::new()))
            }
            // It never existed, or its absence was reported.
            FileState::Absent if self.bytes.is_none() => Some(Vec::new()),
            FileState::Absent => Some(self.keep("the file is gone")),
            FileState::Unreadable(reason) => Some(self.keep(&format!("could not read the file: {reason}"))),
        }
    }

    fn apply_bytes(&mut self, bytes: Vec<u8>, is_young: bool) -> Option<Vec<Change>> {
        let (value, problems) = match std::str::from_utf8(&bytes) {
            Ok("") if self.published.is_some() => (None, vec![self.problem("the file is empty")]),
            Ok(text) => self.parsed(text),
            Err(_) => (None, vec![self.problem("could not parse the file: not UTF-8")]),
        };
        if value.is_none() && is_young && self.published.is_some() {
            return None;
        }
        self.bytes = Some(bytes);
        let value = if self.published.is_none() { value.or_else(|| Some((self.parse)("", "").0)) } else { value };
        Some(self.publish(value, problems))
    }

    fn parsed(&self, text: &str) -> (Option<Hashed<T>>, Vec<Problem>) {
        // A panic in the parser must not keep the source out of sync.
        let (value, problems) = match catch_unwind(AssertUnwindSafe(|| (self.parse)(text, &self.name()))) {
            Ok(parsed) => parsed,
            Err(panic) => {
                return (None, vec![self.problem(&format!("could not parse the file: {}", panic_text(&*panic)))]);
            }
        };
        let is_good = problems.iter().all(|problem| problem.severity < Severity::Error);
        (is_good.then_some(value), problems)
    }

    /// Keeps the published settings, or publishes defaults if there are none, with the reason as a problem.
    fn keep(&mut self, reason: &str) -> Vec<Change> {
        self.bytes = None;
        let default = self.published.is_none().then(|| (self.parse)("", &self.name()).0);
        let problems = vec![self.problem(reason)];
        self.publish(default, problems)
    }

    fn publish(&mut self, value: Option<Hashed<T>>, mut problems: Vec<Problem>) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.published.is_some() && value.is_none() {
            for problem in problems.iter_mut().filter(|p| p.severity == Severity::Error) {
                problem.message = format!("{}{KEEPING}", problem.message).into();
            }
        }
        if let Some(value) = value.filter(|value| self.published.as_ref() != Some(value)) {
            self.published = Some(value.clone());
            changes.push((self.change)(value));
        }
        if problems != self.problems {
            self.problems.clone_from(&problems);
            changes.push(Change::Problems(problems));
        }
        changes
    }

    fn problem(&self, message: &str) -> Problem {
        let place = FileLocation { file: self.name().into(), line: 0 };
        Problem::error(Subject::File(place.file.clone()), message).coded(ProblemCode::Setting).at(Some(place))
    }

    fn name(&self) -> String {
        self.file.name()
    }
}

impl<T: Send + Sync + 'static> Source for SettingsFile<T> {
    fn id(&self) -> SourceId {
        SourceId(self.source.into())
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        let mut is_synced = false;
        loop {
            let state = self.file.read(sender.health()).await?;
            let found = self.apply(state);
            let was_used = found.is_some();
            if let Some(mut changes) = found {
                if !std::mem::replace(&mut is_synced, true) {
                    changes.push(Change::Synced);
                }
                sender.send(changes).await?;
            }
            self.file.changed(was_used).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use model::change::Change;

    use super::mesh_config;
    use crate::watched_file::FileState;

    #[test]
    fn only_a_file_that_existed_is_reported_as_missing() {
        let mut file = mesh_config(Path::new("/nowhere/mesh.yaml"));
        assert!(matches!(file.apply(FileState::Absent).as_deref(), Some([Change::Mesh(_)])));
        assert!(file.apply(FileState::Absent).is_some_and(|changes| changes.is_empty()));
        let bytes = b"rootNamespace: mesh".to_vec();
        assert!(file.apply(FileState::Bytes { bytes, is_young: false }).is_some_and(|changes| changes.len() == 1));
        assert!(matches!(file.apply(FileState::Absent).as_deref(), Some([Change::Problems(list)]) if list.len() == 1));
        assert!(file.apply(FileState::Absent).is_some_and(|changes| changes.is_empty()));
    }
}
