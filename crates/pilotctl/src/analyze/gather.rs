//! Reads files, and all configuration files below folders. Pipes, devices and symlink loops in a folder do not stop the
//! analysis: what cannot be read is reported and skipped.

use std::collections::BTreeSet;
use std::fs::{self, Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use model::problem::{FileLocation, Problem, Subject};
use nix::fcntl::OFlag;

/// Maximum depth of folders.
const MAX_DEPTH: usize = 32;

/// Maximum size of a file, far above the size limit of an object in an API server.
const MAX_BYTES: u64 = 64 << 20;

/// Files and folders read so far.
#[derive(Default)]
pub(crate) struct GatheredFiles {
    /// Names and contents of files, in order.
    pub(crate) texts: Vec<(String, String)>,
    pub(crate) problems: Vec<Problem>,
    /// Device and inode of every file and folder: each is read once, even if several paths lead to it.
    seen: BTreeSet<(u64, u64)>,
}

impl GatheredFiles {
    /// Adds an argument: a file, a folder, or `-` for standard input. Fails if it cannot be read; unreadable files inside
    /// a folder become problems.
    pub(crate) fn add(&mut self, path: &Path) -> Result<()> {
        let name = path.to_string_lossy().into_owned();
        if name == "-" {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("could not read standard input")?;
            self.texts.push((name, text));
            return Ok(());
        }
        self.add_at(path, &mut Vec::new()).with_context(|| format!("could not read {name}"))
    }

    /// `above` are the parent folders, to detect loops.
    fn add_at(&mut self, path: &Path, above: &mut Vec<(u64, u64)>) -> Result<()> {
        let about = fs::metadata(path)?;
        let identity = (about.dev(), about.ino());
        ensure!(!above.contains(&identity), "the symlink leads back to one of its parent folders");
        if !self.seen.insert(identity) {
            return Ok(());
        }
        if !about.is_dir() {
            let text = read(path, &about)?;
            self.texts.push((path.to_string_lossy().into_owned(), text));
            return Ok(());
        }
        ensure!(above.len() < MAX_DEPTH, "folders nested more than {MAX_DEPTH} deep are not read");
        above.push(identity);
        let listed = self.add_inside(path, above);
        above.pop();
        listed
    }

    fn add_inside(&mut self, folder: &Path, above: &mut Vec<(u64, u64)>) -> Result<()> {
        let mut inside = Vec::new();
        for entry in fs::read_dir(folder)? {
            inside.push(entry?.path());
        }
        inside.sort();
        for path in inside.iter().filter(|path| path.is_dir() || is_configuration(path)) {
            if let Err(error) = self.add_at(path, above) {
                let file = path.to_string_lossy().into_owned();
                let location = FileLocation { file: file.as_str().into(), line: 0 };
                self.problems.push(
                    Problem::error(Subject::File(location.file.clone()), format!("could not read it: {error:#}"))
                        .at(Some(location)),
                );
            }
        }
        Ok(())
    }
}

/// Reads a regular file. Anything else is an error: reading a pipe would block.
fn read(path: &Path, about: &Metadata) -> Result<String> {
    ensure!(about.is_file(), "not a regular file");
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    // The path may have been replaced since the first check.
    ensure!(file.metadata()?.is_file(), "not a regular file");
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        bail!("larger than {MAX_BYTES} bytes");
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn is_configuration(path: &Path) -> bool {
    path.extension().is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|known| extension == *known))
}

/// The documents of a text with the numbers of their first lines.
pub(crate) fn parts(text: &str) -> Vec<(usize, &str)> {
    let mut parts = Vec::new();
    let (mut start, mut first, mut at) = (0, 1, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if line.starts_with("---") {
            parts.push((first, &text[start..at]));
            (start, first) = (at + line.len(), number + 2);
        }
        at += line.len();
    }
    parts.push((first, &text[start..]));
    let is_content = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    parts
        .into_iter()
        .filter_map(|(first, part)| {
            let skipped = part.lines().position(is_content)?;
            Some((first + skipped, part))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn documents_have_the_line_of_their_first_field() {
        let text = "# head\na: 1\n---\n\n# more\nb: 2\n---\n";
        let found: Vec<usize> = parts(text).iter().map(|(line, _)| *line).collect();
        assert_eq!(found, [2, 6]);
    }
}
