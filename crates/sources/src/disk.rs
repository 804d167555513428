//! One file on disk: its bytes, and a stamp that differs when they may differ.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Larger files are refused: among config such a file is a mistake.
const MAX_SIZE: u64 = 64 << 20;
/// Content this young may be half of what its writer has in mind.
pub(crate) const YOUNG: Duration = Duration::from_millis(50);

/// Differs when a file's content may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) size: u64,
    pub(crate) modified: SystemTime,
    pub(crate) identity: Identity,
}

/// Which file or folder it is, whatever its name: device and inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity(u64, u64);

impl Stamp {
    pub(crate) fn of(metadata: &Metadata) -> Stamp {
        let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        Stamp { size: metadata.len(), modified, identity: Identity::of(metadata) }
    }

    /// Whether the writer may still be at it. A time in the future says nothing.
    pub(crate) fn is_young(&self) -> bool {
        SystemTime::now().duration_since(self.modified).is_ok_and(|age| age < YOUNG)
    }
}

impl Identity {
    #[cfg(unix)]
    pub(crate) fn of(metadata: &Metadata) -> Identity {
        use std::os::unix::fs::MetadataExt;
        Identity(metadata.dev(), metadata.ino())
    }

    #[cfg(not(unix))]
    pub(crate) fn of(_: &Metadata) -> Identity {
        Identity::default()
    }
}

/// The file's bytes, or nothing where it changed under our eyes.
pub(crate) fn bytes(path: &Path) -> io::Result<Option<(Stamp, Vec<u8>)>> {
    // Looked at before it is opened: opening a pipe waits for its writer.
    if !path.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut file = File::open(path)?;
    let before = Stamp::of(&file.metadata()?);
    if before.size > MAX_SIZE {
        return Err(io::Error::other(format!("larger than {} MiB", MAX_SIZE >> 20)));
    }
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(MAX_SIZE).read_to_end(&mut bytes)?;
    let after = Stamp::of(&file.metadata()?);
    let is_settled = before == after && bytes.len() as u64 == after.size;
    Ok(is_settled.then_some((after, bytes)))
}

/// Whether an error says that the path is simply not there.
pub(crate) fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
