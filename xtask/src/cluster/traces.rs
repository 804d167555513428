//! What a cluster leaves on the machine when it ends: nothing. The kernel removes its namespaces with the last process in them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::machine::Cluster;

const NAMESPACES: &[&str] = &["net", "mnt", "pid", "uts"];

/// How a running cluster can be recognized.
pub(crate) struct ClusterTraces {
    folder: PathBuf,
    /// As links of `/proc/PID/ns`.
    namespaces: BTreeSet<PathBuf>,
}

impl Cluster {
    /// The namespaces of all processes of the cluster, and its folder.
    pub(crate) fn traces(&self) -> Result<ClusterTraces> {
        let inside = self.inside_pid()?;
        let own: BTreeSet<PathBuf> = namespaces(Path::new("/proc/self")).collect();
        let mut all = BTreeSet::new();
        for process in processes()? {
            let pid = process.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if super::usage::is_descendant(&pid, &inside) {
                all.extend(namespaces(&process).filter(|namespace| !own.contains(namespace)));
            }
        }
        // Every pod has its own network.
        ensure!(all.len() > NAMESPACES.len(), "could not see the cluster's namespaces: {all:?}");
        Ok(ClusterTraces { folder: self.folder().to_owned(), namespaces: all })
    }
}

impl ClusterTraces {
    /// An error if a process, namespace, mount or file of the cluster is still there.
    pub(crate) fn require_none(&self) -> Result<()> {
        let folder = self.folder.to_string_lossy();
        for process in processes()? {
            let line = fs::read(process.join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let is_inside = namespaces(&process).any(|namespace| self.namespaces.contains(&namespace));
            ensure!(!is_inside && !line.contains(&*folder), "process {} is left: {line}", process.display());
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let named = |line: &&str| {
            let is_held = self.namespaces.iter().any(|namespace| line.contains(&*namespace.to_string_lossy()));
            is_held || line.contains(&*folder)
        };
        ensure!(!mounts.lines().any(|line| named(&line)), "a mount is left: {mounts}");
        ensure!(!self.folder.exists(), "{folder} is left");
        Ok(())
    }
}

fn processes() -> Result<impl Iterator<Item = PathBuf>> {
    let is_number = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.chars().all(|c| c.is_ascii_digit())
    };
    Ok(fs::read_dir("/proc")?.filter_map(|entry| Some(entry.ok()?.path())).filter(is_number))
}

/// Namespaces of a process that still runs.
fn namespaces(process: &Path) -> impl Iterator<Item = PathBuf> {
    NAMESPACES.iter().filter_map(|name| fs::read_link(process.join("ns").join(name)).ok())
}
