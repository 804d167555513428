//! Publishes the findings of the analysis as problems, so that the log, the debug pages and metrics have them. The checks
//! are in `model::analysis`; this task decides when they run, and looks up the lines of values in the files.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::analysis::{self, CheckInput, Finding};
use model::change::{Batch, Change, SourceId};
use model::config::{Key, lines, parse};
use model::names::Str;
use model::problem::{Problem, ProblemCode, Severity, Subject};
use model::settings::Settings;
use model::snapshot::Snapshot;
use model::snapshot::gateway_api::ConvertedConfig;
use model::snapshot::objects::Objects;
use model::snapshot::services::Services;
use model::snapshot::workloads::{Credentials, Namespaces, Workloads};
use sources::disk;
use sources::source_set::SourceSet;
use tokio::time::timeout;

use super::snapshot_writer::SnapshotWriter;

/// Changes that follow within this time are analyzed together.
const QUIET: Duration = Duration::from_millis(200);
/// The pause after an analysis is this many times as long as it took: it may use a twentieth of a core.
const PAUSE: u32 = 20;
/// Interval of checks while a source has not synced: a check of an incomplete mesh would call everything missing.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Files that are read to find the lines of values; findings in others have the line of their object.
const MOST_FILES: usize = 100;
/// Larger files are not parsed again for the lines of values.
const LARGE: usize = 1 << 20;
/// Findings that are published.
const MOST_FINDINGS: usize = 1000;

/// The parts of a snapshot that checks read. Endpoints change most often, and no check reads them.
#[derive(Debug)]
struct AnalyzedParts {
    settings: Arc<Settings>,
    objects: Arc<Objects>,
    converted: Arc<ConvertedConfig>,
    services: Arc<Services>,
    workloads: Arc<Workloads>,
    namespaces: Arc<Namespaces>,
    credentials: Arc<Credentials>,
}

impl AnalyzedParts {
    fn of(snapshot: &Snapshot) -> AnalyzedParts {
        let Snapshot { settings, objects, converted, services, workloads, namespaces, credentials, .. } = snapshot;
        AnalyzedParts {
            settings: settings.clone(),
            objects: objects.clone(),
            converted: converted.clone(),
            services: services.clone(),
            workloads: workloads.clone(),
            namespaces: namespaces.clone(),
            credentials: credentials.clone(),
        }
    }

    fn are_in(&self, snapshot: &Snapshot) -> bool {
        Arc::ptr_eq(&self.settings, &snapshot.settings)
            && Arc::ptr_eq(&self.objects, &snapshot.objects)
            && Arc::ptr_eq(&self.converted, &snapshot.converted)
            && Arc::ptr_eq(&self.services, &snapshot.services)
            && Arc::ptr_eq(&self.workloads, &snapshot.workloads)
            && Arc::ptr_eq(&self.namespaces, &snapshot.namespaces)
            && Arc::ptr_eq(&self.credentials, &snapshot.credentials)
    }
}

/// Analyzes the newest snapshot after every change but one of endpoints alone, until the snapshot writer ends.
pub(crate) async fn follow(world: SnapshotWriter, sources: SourceSet) {
    let mut snapshots = world.snapshots();
    let mut published = Vec::new();
    let mut analyzed: Option<AnalyzedParts> = None;
    loop {
        let latest = snapshots.borrow_and_update().clone();
        let is_complete = sources.unsynced(&latest.snapshot.synced).is_empty();
        let is_new = !analyzed.as_ref().is_some_and(|parts| parts.are_in(&latest.snapshot));
        if is_complete && is_new {
            analyzed = Some(AnalyzedParts::of(&latest.snapshot));
            let began = Instant::now();
            let snapshot = latest.snapshot.clone();
            drop(latest);
            let Ok(problems) = tokio::task::spawn_blocking(move || problems(&snapshot)).await else { return };
            let pause = QUIET.max(began.elapsed() * PAUSE);
            if problems != published {
                published.clone_from(&problems);
                let source = SourceId(analysis::SOURCE.into());
                let batch = Batch { source, changes: vec![Change::Problems(problems)] };
                if world.changes().send(batch).await.is_err() {
                    return;
                }
            }
            tokio::time::sleep(pause).await;
        }
        let changed = match is_complete {
            true => snapshots.changed().await,
            false => timeout(LOOK_AGAIN, snapshots.changed()).await.unwrap_or(Ok(())),
        };
        if changed.is_err() {
            return;
        }
    }
}

/// The findings as problems. Those of parsing and validation are problems of their sources already (`AddressNeeded` repeats
/// one); what is only worth knowing, such as a convention for names, is on the page of the analysis.
fn problems(snapshot: &Arc<Snapshot>) -> Vec<Problem> {
    let mut found = analysis::analyze_with(snapshot, |input| input != CheckInput::Problems);
    found.retain(|finding| finding.severity > Severity::Info && finding.code != ProblemCode::AddressNeeded);
    let more = found.len().saturating_sub(MOST_FINDINGS);
    found.truncate(MOST_FINDINGS);
    locate(&mut found);
    let mut problems: Vec<Problem> = found.into_iter().map(Finding::into_problem).collect();
    if more > 0 {
        let message = format!("{more} further findings are listed at /debug/analyze");
        let about = Subject::Setting(analysis::SOURCE.into());
        problems.push(Problem::warning(about, message).coded(ProblemCode::Limit));
    }
    problems
}

/// Sets the lines of findings to those of their values, for objects of files.
pub(crate) fn locate(found: &mut [Finding]) {
    let mut by_file: BTreeMap<Str, Vec<&mut Finding>> = BTreeMap::new();
    for finding in found.iter_mut().filter(|finding| !finding.field.is_empty()) {
        let file = finding.location.as_ref().filter(|location| location.line > 0).map(|location| &location.file);
        if let Some(file) = file.filter(|file| Path::new(&***file).is_absolute()).cloned() {
            by_file.entry(file).or_default().push(finding);
        }
    }
    for (file, findings) in by_file.into_iter().take(MOST_FILES) {
        // A file that cannot be read is reported by its source.
        if let Some(text) = disk::text(Path::new(&*file)).ok().filter(|text| text.len() <= LARGE) {
            locate_in(&text, &file, findings);
        }
    }
}

/// Lines of an object's fields in its file; none if the file does not have the object any more.
pub(crate) fn lines_of(file: &Path, key: &Key, fields: &[String]) -> Vec<u32> {
    let Some(text) = disk::text(file).ok().filter(|text| text.len() <= LARGE) else { return Vec::new() };
    let parsed = parse::documents(&text, &file.to_string_lossy());
    let object = parsed.objects.iter().find(|object| object.key() == *key);
    let Some(location) = object.and_then(|object| object.meta.location.as_ref()) else { return Vec::new() };
    let mut found = vec![location.line; fields.len()];
    let mut wanted: Vec<(&mut u32, &str)> = found.iter_mut().zip(fields.iter().map(String::as_str)).collect();
    lines::locate(&text, &mut wanted);
    found
}

/// An edit may have moved objects without changing them, so they are looked up by name.
fn locate_in(text: &str, file: &str, findings: Vec<&mut Finding>) {
    let parsed = parse::documents(text, file);
    let lines: HashMap<Key, u32> =
        parsed.objects.iter().filter_map(|object| Some((object.key(), object.meta.location.as_ref()?.line))).collect();
    let mut fields = Vec::new();
    for finding in findings {
        let Finding { location: Some(location), about: Subject::Object(key), field, .. } = finding else { continue };
        let Some(line) = lines.get(key) else { continue };
        location.line = *line;
        fields.push((&mut location.line, field.as_str()));
    }
    lines::locate(text, &mut fields);
}

#[cfg(test)]
mod tests {
    use std::fs;

    use model::analysis::analyze;
    use model::change::{Batch, Change, SourceId};
    use model::config::parse::documents;
    use model::settings::Settings;
    use model::snapshot::Snapshot;

    use super::locate;

    #[test]
    fn findings_have_the_line_of_their_value_also_after_the_object_has_moved() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("route.yaml");
        let text = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a, namespace: shop}\nspec:\n  \
                    hosts: [a]\n  http:\n  - route:\n    - destination:\n        host: missing\n";
        let objects = documents(text, &file.to_string_lossy()).objects;
        let changes = objects.into_iter().map(Change::Applied).collect();
        let batch = Batch { source: SourceId("files".into()), changes };
        let (snapshot, _) = Snapshot::empty(Settings::default()).apply(vec![batch]);
        for (before, expected) in [("", 9), ("# a comment\n\n", 11)] {
            fs::write(&file, format!("{before}{text}")).unwrap();
            let mut found = analyze(&snapshot);
            locate(&mut found);
            let lines: Vec<u32> = found.iter().filter_map(|f| Some(f.location.as_ref()?.line)).collect();
            assert_eq!(lines, [expected], "{found:?}");
        }
    }
}
