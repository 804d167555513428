//! Builds a snapshot from configuration files. Documents that cannot be parsed become problems.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use model::change::{Batch, Change, SourceId};
use model::config::mesh::{default_mesh, parse_mesh};
use model::config::parse::documents;
use model::config::validate::validate;
use model::config::{Meta, Object};
use model::hashed::Hashed;
use model::problem::{Problem, Severity, Subject};
use model::settings::Settings;
use model::snapshot::Snapshot;

use super::gather::GatheredFiles;

/// The snapshot built from the files, and the files' names.
pub(super) struct AnalyzedFiles {
    pub(super) world: Snapshot,
    pub(super) names: Vec<String>,
}

/// Reads files and folders. An argument that cannot be read is an error; every other mistake is a problem in the snapshot.
pub(super) fn read(
    paths: &[PathBuf],
    namespace: &str,
    mesh_config: Option<&Path>,
    ignore_unreadable: bool,
) -> Result<AnalyzedFiles> {
    let mut gathered = GatheredFiles::default();
    for path in paths {
        gathered.add(path)?;
    }
    let GatheredFiles { texts, mut problems, .. } = gathered;
    let mut changes = Vec::new();
    for (name, text) in &texts {
        let parsed = documents(text, name);
        problems.extend(parsed.problems);
        for object in parsed.objects {
            let object = placed(object, namespace);
            let found = validate(&object);
            if found.iter().all(|problem| problem.severity < Severity::Error) {
                changes.push(Change::Applied(object));
            }
            problems.extend(found);
        }
    }
    if ignore_unreadable {
        problems.retain(|problem| !is_about_file(problem));
    }
    let mesh = match mesh_config {
        None => Hashed::from_message(default_mesh()),
        Some(path) => {
            let text = fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))?;
            let (mesh, found) = parse_mesh(&text, &path.to_string_lossy());
            problems.extend(found);
            mesh
        }
    };
    changes.push(Change::Problems(problems));
    let settings = Settings { mesh, ..Settings::default() };
    let batch = Batch { source: SourceId("files".into()), changes };
    let (world, _) = Snapshot::empty(settings).apply(vec![batch]);
    Ok(AnalyzedFiles { world, names: texts.into_iter().map(|(name, _)| name).collect() })
}

/// Whether a problem is about a document that is not an object.
fn is_about_file(problem: &Problem) -> bool {
    matches!(problem.about, Subject::File(_))
}

fn placed(object: Object, namespace: &str) -> Object {
    if !object.meta.namespace.is_empty() || object.spec.kind().is_cluster_wide() {
        return object;
    }
    let meta = Meta { namespace: namespace.into(), ..Meta::clone(&object.meta) };
    Object { meta: Arc::new(meta), spec: object.spec }
}
