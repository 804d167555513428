//! All access to files: regular files up to a size limit, read within a deadline (`threads`), with a stamp that changes
//! when the content may have changed.

mod threads;

use std::fs::{self, DirEntry, File, FileType, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Larger files are refused.
const MAX_SIZE: u64 = 64 << 20;
/// A file modified this recently may not be complete yet.
pub(crate) const YOUNG: Duration = Duration::from_millis(50);

/// Changes when a file's content may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    pub(crate) size: u64,
    pub(crate) modified: SystemTime,
    pub(crate) identity: FileId,
}

/// Device and inode: identifies a file or folder under any name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId(u64, u64);

impl FileStamp {
    pub(crate) fn of(metadata: &Metadata) -> FileStamp {
        let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        FileStamp { size: metadata.len(), modified, identity: FileId::of(metadata) }
    }

    /// Whether the file may still be written. A modification time in the future does not count.
    pub(crate) fn is_young(&self) -> bool {
        SystemTime::now().duration_since(self.modified).is_ok_and(|age| age < YOUNG)
    }
}

impl FileId {
    #[cfg(unix)]
    pub(crate) fn of(metadata: &Metadata) -> FileId {
        use std::os::unix::fs::MetadataExt;
        FileId(metadata.dev(), metadata.ino())
    }

    #[cfg(not(unix))]
    pub(crate) fn of(_: &Metadata) -> FileId {
        FileId::default()
    }
}

/// Reads a file; `None` if it changed while it was read. Blocks for a few seconds at most.
pub(crate) fn bytes(path: &Path) -> io::Result<Option<(FileStamp, Vec<u8>)>> {
    threads::run(path, bytes_of)?
}

/// Reads a file that is not watched, such as a certificate or a token.
pub fn content(path: &Path) -> io::Result<Vec<u8>> {
    match bytes(path)? {
        Some((_, bytes)) => Ok(bytes),
        None => Err(io::Error::other("the file is being written")),
    }
}

/// Reads a text file that is not watched.
pub fn text(path: &Path) -> io::Result<String> {
    String::from_utf8(content(path)?).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8"))
}

/// Metadata and canonical path, with symlinks followed.
pub(crate) fn target(path: &Path) -> io::Result<(Metadata, PathBuf)> {
    threads::run(path, |path| Ok((path.metadata()?, path.canonicalize()?)))?
}

/// The stamp of a file; `None` if it cannot be read.
pub(crate) fn stamp(path: &Path) -> Option<FileStamp> {
    target(path).ok().map(|(metadata, _)| FileStamp::of(&metadata))
}

/// The canonical path; `None` if it cannot be read.
pub(crate) fn canonical(path: &Path) -> Option<PathBuf> {
    target(path).ok().map(|(_, canonical)| canonical)
}

/// The content of a folder.
pub(crate) struct DirListing {
    pub(crate) identity: FileId,
    pub(crate) canonical: PathBuf,
    /// Ordered by name.
    pub(crate) entries: Vec<(PathBuf, FileType)>,
}

/// Lists a folder.
pub(crate) fn list(path: &Path) -> io::Result<DirListing> {
    threads::run(path, |path| {
        let identity = FileId::of(&path.metadata()?);
        let entry = |entry: io::Result<DirEntry>| entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)));
        let mut entries = fs::read_dir(path)?.map(entry).collect::<io::Result<Vec<_>>>()?;
        entries.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(DirListing { identity, canonical: path.canonicalize()?, entries })
    })?
}

fn bytes_of(path: &Path) -> io::Result<Option<(FileStamp, Vec<u8>)>> {
    let mut file = opened(path)?;
    let before = FileStamp::of(&file.metadata()?);
    if before.size > MAX_SIZE {
        return Err(io::Error::other(format!("larger than {} MiB: split it into several files", MAX_SIZE >> 20)));
    }
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(MAX_SIZE).read_to_end(&mut bytes)?;
    let after = FileStamp::of(&file.metadata()?);
    let is_settled = before == after && bytes.len() as u64 == after.size;
    Ok(is_settled.then_some((after, bytes)))
}

/// Opens a regular file. Devices and pipes are refused: opening a device may have side effects, and opening a pipe waits
/// for a writer. O_NONBLOCK covers a pipe that replaces the file between the check and the open.
fn opened(path: &Path) -> io::Result<File> {
    let irregular = || io::Error::other("not a regular file");
    if !path.metadata()?.is_file() {
        return Err(irregular());
    }
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    {
        use nix::fcntl::OFlag;
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits());
    }
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(irregular()) }
}

/// Whether an error means that the path does not exist.
pub(crate) fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::{bytes_of, content, opened};

    #[test]
    fn hole_08_only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
        symlink(at("pipe"), at("link")).unwrap();
        symlink("/dev/zero", at("zero")).unwrap();
        std::fs::create_dir(at("folder.yaml")).unwrap();
        symlink(at("file"), at("good")).unwrap();
        std::fs::write(at("file"), "a: 1").unwrap();
        for name in ["pipe", "link", "zero", "folder.yaml"] {
            let error = content(&at(name)).unwrap_err();
            assert_eq!(error.to_string(), "not a regular file", "{name}");
        }
        assert_eq!(content(&at("good")).unwrap(), b"a: 1");
    }

    /// The file may become a pipe between the check and the open.
    #[test]
    fn hole_08_a_pipe_in_place_of_a_file_is_opened_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let (file, pipe) = (folder.path().join("file"), folder.path().join("pipe"));
        for _ in 0..200 {
            let _ = std::fs::remove_file(&file);
            std::fs::write(&file, "a: 1").unwrap();
            mkfifo(&pipe, Mode::S_IRWXU).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| std::fs::rename(&pipe, &file).unwrap());
                // Either result is fine; waiting for the pipe's writer would hang this test.
                let _ = opened(&file);
            });
        }
    }

    #[test]
    fn hole_08_a_file_that_grows_while_it_is_read_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "x".repeat(1 << 20)).unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let half = std::thread::scope(|scope| {
            let grow = || {
                use std::io::Write;
                let mut growing = std::fs::File::options().append(true).open(&file).unwrap();
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    growing.write_all(b"y").unwrap();
                }
            };
            scope.spawn(grow);
            let half = (0..20)
                .filter_map(|_| bytes_of(&file).unwrap())
                .find(|(stamp, bytes)| stamp.size != bytes.len() as u64);
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            half.map(|(stamp, _)| stamp)
        });
        assert_eq!(half, None);
    }
}
