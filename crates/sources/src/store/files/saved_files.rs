//! `--stateDir`: a copy of the last content of each config file that had no errors. A server that starts while a file is
//! broken serves the copy. Copies of deleted files are deleted.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use model::problem::{Problem, ProblemCode, Subject};
use xxhash_rust::xxh3::xxh3_128;

use super::read_file::{ParsedFile, RawFile};
use crate::disk;

/// The copies of the files of one config folder.
pub(crate) struct SavedFiles {
    folder: PathBuf,
    failure: Option<String>,
    has_cleaned: bool,
}

impl SavedFiles {
    /// Copies for the config folder `root` below the state folder.
    pub(crate) fn new(state: &Path, root: &Path) -> SavedFiles {
        SavedFiles { folder: state.join(format!("files-{}", name_of(root))), failure: None, has_cleaned: false }
    }

    /// Saves a file unless its copy is the same or it has changed since it was read.
    pub(crate) fn save(&mut self, file: &Path, hash: u128) {
        let copy = self.copy_of(file);
        let is_saved = disk::content(&copy).is_ok_and(|bytes| xxh3_128(&bytes) == hash);
        if is_saved {
            return;
        }
        let Some(bytes) = disk::content(file).ok().filter(|bytes| xxh3_128(bytes) == hash) else { return };
        self.failure = self.write(&copy, &bytes).err().map(|error| format!("{}: {error}", copy.display()));
    }

    /// The last good content of a file, with the file's own name in messages.
    pub(crate) fn load(&self, file: &Path) -> Option<ParsedFile> {
        let (stamp, bytes) = disk::bytes(&self.copy_of(file)).ok()??;
        let content = RawFile::new(stamp, bytes).parsed(file);
        (!content.objects.is_empty()).then_some(content)
    }

    pub(crate) fn remove(&self, file: &Path) {
        // A copy that remains is of a file that no longer exists, and is deleted at the next start.
        let _ = fs::remove_file(self.copy_of(file));
    }

    /// Deletes, once, the copies of files that were deleted while no server ran.
    pub(crate) fn forget_others<'a>(&mut self, files: impl Iterator<Item = &'a PathBuf>) {
        if std::mem::replace(&mut self.has_cleaned, true) {
            return;
        }
        let known: HashSet<PathBuf> = files.map(|file| self.copy_of(file)).collect();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if !known.contains(&entry.path()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Why copies cannot be written.
    pub(crate) fn problem(&self) -> Option<Problem> {
        let failure = self.failure.as_ref()?;
        let message = format!("could not save {failure}; after a restart a broken file has no last good content");
        let about = Subject::Setting("--stateDir".into());
        Some(Problem::warning(about, message).coded(ProblemCode::Setting))
    }

    fn copy_of(&self, file: &Path) -> PathBuf {
        self.folder.join(format!("{}.yaml", name_of(file)))
    }

    /// Replaces the copy at once: it is never half written.
    fn write(&self, copy: &Path, bytes: &[u8]) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let part = copy.with_extension("part");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        file.write_all(bytes)?;
        file.sync_data()?;
        fs::rename(&part, copy)
    }
}

fn name_of(path: &Path) -> String {
    format!("{:032x}", xxh3_128(path.as_os_str().as_encoded_bytes()))
}
