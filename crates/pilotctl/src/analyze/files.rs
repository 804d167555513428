//! Builds a snapshot from configuration files. Documents that cannot be parsed become problems. Services, EndpointSlices
//! and Pods are joined as those of a cluster are.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use model::analysis::{self, CheckInput, Finding};
use model::change::{Batch, Change, SourceId};
use model::config::check::checked;
use model::config::mesh::{default_mesh, parse_mesh};
use model::config::{Kind, lines};
use model::hashed::Hashed;
use model::problem::{Problem, Subject};
use model::settings::Settings;
use model::snapshot::Snapshot;
use sources::kubernetes::join::{ClusterOptions, ClusterState};
use sources::kubernetes::schema::ClusterObject;

use super::cluster_objects::cluster_objects;
use super::gather::GatheredFiles;

/// The snapshot built from the files, and the files' names and texts.
pub(super) struct AnalyzedFiles {
    world: Snapshot,
    texts: Vec<(String, String)>,
    has_services: bool,
    has_pods: bool,
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
        let parsed = checked(text, name, namespace);
        problems.extend(parsed.problems);
        changes.extend(parsed.objects.into_iter().map(Change::Applied));
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
    let settings = Settings { mesh, ..Settings::default() };
    let objects: Vec<ClusterObject> = texts.iter().flat_map(|(_, text)| cluster_objects(text, namespace)).collect();
    let has_services = objects.iter().any(|object| matches!(object, ClusterObject::Service(_)));
    let has_pods = objects.iter().any(|object| matches!(object, ClusterObject::Pod(_)));
    let mut cluster = ClusterState::new(ClusterOptions::own(&settings), settings.clone());
    objects.into_iter().for_each(|object| cluster.apply(object));
    changes.push(Change::Problems(problems));
    let batches = vec![
        Batch { source: SourceId("files".into()), changes },
        Batch { source: SourceId("Kubernetes".into()), changes: cluster.changes() },
    ];
    let (world, _) = Snapshot::empty(settings).apply(batches);
    Ok(AnalyzedFiles { world, texts, has_services, has_pods })
}

impl AnalyzedFiles {
    pub(super) fn into_world(self) -> Snapshot {
        self.world
    }

    /// The findings, with the lines of their values.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut found = analysis::analyze_with(&self.world, |input| self.knows(input));
        for (name, text) in &self.texts {
            let of_file = found.iter_mut().filter(|finding| !finding.field.is_empty());
            let mut fields: Vec<(&mut u32, &str)> = of_file
                .filter_map(|finding| {
                    let location = finding.location.as_mut().filter(|location| *location.file == **name)?;
                    Some((&mut location.line, finding.field.as_str()))
                })
                .collect();
            lines::locate(text, &mut fields);
        }
        found
    }

    /// Checks that were left out, and why.
    pub(super) fn left_out(&self) -> Vec<String> {
        let why = |input: CheckInput| match input {
            CheckInput::Services => "the files have neither a Service nor a ServiceEntry",
            _ => "the files have no Pod",
        };
        let unknown = analysis::CHECKS.iter().filter(|(_, _, input, _)| !self.knows(*input));
        unknown.map(|(name, _, input, _)| format!("check left out: {name}: {}", why(*input))).collect()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(|(name, _)| name.as_str())
    }

    /// Files rarely have everything: what no file has may be in the cluster.
    fn knows(&self, input: CheckInput) -> bool {
        match input {
            CheckInput::Objects | CheckInput::Problems => true,
            CheckInput::Services => self.has_services || self.world.objects.of(Kind::ServiceEntry).next().is_some(),
            CheckInput::Workloads => {
                // Sidecars without a selector need no workload.
                self.has_pods || self.world.objects.of(Kind::Sidecar).next().is_some()
            }
        }
    }
}

/// Whether a problem is about a document that is not an object.
fn is_about_file(problem: &Problem) -> bool {
    matches!(problem.about, Subject::File(_))
}
