//! A Eureka server: the small Spring application in `tools/servers/eureka`, built by Maven.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{Scratch, debian, fingerprint, tool};

const MAIN: &str = "src/main/java/registry/EurekaServer.java";

/// The path of the runnable archive; builds it unless the cache has it.
pub(crate) fn get(root: &Path, cache: &Path) -> Result<PathBuf> {
    let project = root.join("tools/servers/eureka");
    let pins = fingerprint(&[project.join("pom.xml"), project.join(MAIN)])?;
    let folder = cache.join(format!("eureka-{pins}"));
    let archive = folder.join("eureka.jar");
    if archive.is_file() {
        return Ok(archive);
    }
    println!("setup: building eureka, which takes minutes the first time");
    let scratch = Scratch::new(cache, "eureka")?;
    let target = format!("-DbuildDirectory={}", scratch.0.display());
    let maven = debian::get(&debian::MAVEN)?;
    tool(Command::new(maven).current_dir(&project).args(["--batch-mode", "--quiet", &target, "package"]))?;
    fs::create_dir_all(&folder)?;
    fs::rename(scratch.0.join("eureka.jar"), &archive)?;
    Ok(archive)
}
