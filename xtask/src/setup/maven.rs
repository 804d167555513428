//! Servers in Java, built by Maven from `tools/servers/NAME`: Eureka as a small Spring application, ZooKeeper as it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{Scratch, debian, fingerprint, tool};

/// A runnable archive.
pub(super) struct Archive {
    /// The folder under `tools/servers`, and the name of the archive without `.jar`.
    name: &'static str,
    /// Our own source, under that folder.
    source: Option<&'static str>,
}

pub(super) const EUREKA: Archive = Archive { name: "eureka", source: Some("src/main/java/registry/EurekaServer.java") };
pub(super) const ZOOKEEPER: Archive = Archive { name: "zookeeper", source: None };

/// The path of the archive; builds it unless the cache has it.
pub(super) fn get(archive: &Archive, root: &Path, cache: &Path) -> Result<PathBuf> {
    let Archive { name, source } = archive;
    let project = root.join("tools/servers").join(name);
    let files: Vec<PathBuf> = ["pom.xml"].into_iter().chain(*source).map(|file| project.join(file)).collect();
    let folder = cache.join(format!("{name}-{}", fingerprint(&files)?));
    let file = folder.join(format!("{name}.jar"));
    if file.is_file() {
        return Ok(file);
    }
    println!("setup: building {name}, which takes minutes the first time");
    let scratch = Scratch::new(cache, name)?;
    let target = format!("-DbuildDirectory={}", scratch.0.display());
    let maven = debian::get(&debian::MAVEN)?;
    tool(Command::new(maven).current_dir(&project).args(["--batch-mode", "--quiet", &target, "package"]))?;
    fs::create_dir_all(&folder)?;
    fs::rename(scratch.0.join(format!("{name}.jar")), &file)?;
    Ok(file)
}
