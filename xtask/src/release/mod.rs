//! `cargo xtask release VERSION`: sets the version, closes the changelog's section, commits and tags, then packs
//! `target/dist` (see `package`). `--dry-run` changes no tracked file, makes no commit,
//! and packs the development build.

mod changelog;
mod versions;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::package::{self, PackedBuild, output};
use changelog::Fragment;

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum ReleaseMode {
    Real,
    DryRun,
}

/// A tracked file and its content after the release.
struct Edit {
    file: String,
    text: String,
}

pub(crate) fn run(root: &Path, version: &str, mode: ReleaseMode) -> Result<()> {
    if !versions::is_version(version) {
        bail!("{version:?} is not a version such as 0.2.0");
    }
    let fragments = fragments(root)?;
    let edits = edits(root, version, &fragments)?;
    match mode {
        ReleaseMode::Real => commit(root, version, &edits, &fragments)?,
        ReleaseMode::DryRun => {
            edits.iter().for_each(|edit| println!("release: would write {}", edit.file));
            fragments.iter().for_each(|fragment| println!("release: would delete changelog.d/{}", fragment.file));
            println!("release: would commit and tag v{version}");
        }
    }
    let build = if mode == ReleaseMode::Real { PackedBuild::Release } else { PackedBuild::Debug };
    let dist = package::pack(root, version, build)?;
    println!("release: {}", dist.display());
    if mode == ReleaseMode::Real {
        println!("release: publish with `git push --follow-tags` and upload target/dist");
    }
    Ok(())
}

fn fragments(root: &Path) -> Result<Vec<Fragment>> {
    let mut fragments = Vec::new();
    for entry in fs::read_dir(root.join("changelog.d")).context("could not read changelog.d")? {
        let path = entry?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if file != "README.md" {
            fragments.push(Fragment { text: fs::read_to_string(&path)?, file });
        }
    }
    fragments.sort_by(|a, b| a.file.cmp(&b.file));
    Ok(fragments)
}

fn edits(root: &Path, version: &str, fragments: &[Fragment]) -> Result<Vec<Edit>> {
    let mut edits: Vec<Edit> = Vec::new();
    let read = |file: &str| fs::read_to_string(root.join(file)).with_context(|| format!("could not read {file}"));
    for (file, before, after) in versions::PLACES {
        let at = match edits.iter().position(|edit| edit.file == *file) {
            Some(at) => at,
            None => {
                edits.push(Edit { file: (*file).to_owned(), text: read(file)? });
                edits.len() - 1
            }
        };
        let replaced = versions::replaced(&edits[at].text, before, after, version);
        edits[at].text = replaced.with_context(|| format!("could not set the version in {file}"))?;
    }
    let text = changelog::released(&read("CHANGELOG.md")?, fragments, version, &today()?)?;
    edits.push(Edit { file: "CHANGELOG.md".to_owned(), text });
    Ok(edits)
}

fn commit(root: &Path, version: &str, edits: &[Edit], fragments: &[Fragment]) -> Result<()> {
    if !output(Command::new("git").current_dir(root).args(["status", "--porcelain"]))?.is_empty() {
        bail!("commit or discard local changes first");
    }
    for edit in edits {
        fs::write(root.join(&edit.file), &edit.text)?;
    }
    for fragment in fragments {
        fs::remove_file(root.join("changelog.d").join(&fragment.file))?;
    }
    output(Command::new(env!("CARGO")).current_dir(root).args(["update", "--workspace", "--offline"]))?;
    output(Command::new("git").current_dir(root).args([
        "commit",
        "--all",
        "--message",
        &format!("release: {version}"),
    ]))?;
    let (tag, message) = (format!("v{version}"), format!("Pilotage {version}"));
    output(Command::new("git").current_dir(root).args(["tag", "--annotate", &tag, "--message", &message]))?;
    Ok(())
}

fn today() -> Result<String> {
    Ok(output(Command::new("date").args(["--utc", "+%Y-%m-%d"]))?.trim().to_owned())
}
