//! Reads files whose path or content is not trusted. A pipe or device could block forever or never end, so only regular
//! files are read, opened with O_NONBLOCK, up to a size limit.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

/// Maximum file size. Bundles of all public CAs are about a quarter of it.
pub(crate) const LIMIT: u64 = 1 << 20;

/// An open regular file and its metadata.
pub(crate) struct RegularFile {
    file: File,
    pub(crate) about: Metadata,
}

impl RegularFile {
    pub(crate) fn open(path: &Path) -> io::Result<RegularFile> {
        // Checked before opening: opening some devices has side effects.
        check(&std::fs::metadata(path)?)?;
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
        let about = file.metadata()?;
        // The path may have been replaced in between.
        check(&about)?;
        Ok(RegularFile { file, about })
    }

    /// Reads the whole content.
    pub(crate) fn read(self) -> io::Result<Vec<u8>> {
        let mut content = Vec::with_capacity(usize::try_from(self.about.len()).unwrap_or_default());
        // The file may grow while it is read.
        self.file.take(LIMIT + 1).read_to_end(&mut content)?;
        if content.len() as u64 > LIMIT { Err(too_large()) } else { Ok(content) }
    }
}

/// Reads a regular file.
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
        // A sparse file: it needs no disk space.
        std::fs::File::create(&large).unwrap().set_len(1 << 40).unwrap();
        std::fs::write(&good, vec![b'x'; usize::try_from(LIMIT).unwrap()]).unwrap();
        for unusable in [&pipe, &link, Path::new("/dev/zero"), folder.path()] {
            assert_eq!(refusal(unusable), "not a regular file", "{}", unusable.display());
        }
        assert_eq!(refusal(&large), "larger than 1048576 bytes");
        assert_eq!(refusal(&good), "1048576 bytes");
    }
}
