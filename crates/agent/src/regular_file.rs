//! Reading of files whose name or content somebody else may choose. A pipe or a device would block the reader for ever
//! or never end, so only regular files are read, opened without waiting, and only up to a size.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

/// The largest file that is read: bundles of all public authorities are a quarter of it.
pub(crate) const LIMIT: u64 = 1 << 20;

/// A file that is open, and what it is.
pub(crate) struct RegularFile {
    file: File,
    pub(crate) about: Metadata,
}

impl RegularFile {
    pub(crate) fn open(path: &Path) -> io::Result<RegularFile> {
        // Looked at before it is opened: to open some devices is to act on them.
        check(&std::fs::metadata(path)?)?;
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
        let about = file.metadata()?;
        // Another file may be there by now.
        check(&about)?;
        Ok(RegularFile { file, about })
    }

    /// The whole content.
    pub(crate) fn read(self) -> io::Result<Vec<u8>> {
        let mut content = Vec::with_capacity(usize::try_from(self.about.len()).unwrap_or_default());
        // A file may grow while it is read.
        self.file.take(LIMIT + 1).read_to_end(&mut content)?;
        if content.len() as u64 > LIMIT { Err(too_large()) } else { Ok(content) }
    }
}

/// The content of a regular file.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    RegularFile::open(path)?.read()
}

fn check(about: &Metadata) -> io::Result<()> {
    if !about.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    if about.len() > LIMIT { Err(too_large()) } else { Ok(()) }
}

fn too_large() -> io::Error {
    io::Error::other(format!("larger than {LIMIT} bytes"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nix::sys::stat::Mode;

    use super::{LIMIT, read};

    fn refusal(path: &Path) -> String {
        read(path).map_or_else(|error| error.to_string(), |content| format!("{} bytes", content.len()))
    }

    #[test]
    fn hole_10_only_regular_files_of_bounded_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let [pipe, large, link, good] = ["pipe", "large", "link", "good"].map(|name| folder.path().join(name));
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        // Sparse: it takes no room.
        std::fs::File::create(&large).unwrap().set_len(1 << 40).unwrap();
        std::fs::write(&good, vec![b'x'; usize::try_from(LIMIT).unwrap()]).unwrap();
        for unusable in [&pipe, &link, Path::new("/dev/zero"), folder.path()] {
            assert_eq!(refusal(unusable), "not a regular file", "{}", unusable.display());
        }
        assert_eq!(refusal(&large), "larger than 1048576 bytes");
        assert_eq!(refusal(&good), "1048576 bytes");
    }
}
