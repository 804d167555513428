//! Decides which files SDS may read. Every author of a DestinationRule or Gateway can name a path on this machine. So a
//! path must be a regular file of bounded size, below an allowed directory, and not private to another user.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::regular_file::RegularFile;

/// Usual directories for certificates. `/var/run` may be a link to `/run` or vice versa.
const USUAL: [&str; 4] = ["/etc", "/var/run/secrets", "/run/secrets", "/var/lib/istio"];

/// Never allowed, even if an allowed directory contains them.
const NEVER: [&str; 3] = ["/dev", "/proc", "/sys"];

/// A file changed this recently may change again with the same timestamp.
const UNSETTLED: Duration = Duration::from_secs(2);

/// Why a file is not read.
#[derive(Debug, Error)]
pub(crate) enum AccessError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{} is not in an allowed directory; PILOTAGE_SECRET_FOLDERS adds directories", .0.display())]
    NotAllowed(PathBuf),
    #[error("the file is private to user {0}")]
    Private(u32),
}

/// The files that SDS may read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAccess {
    /// Files from the agent's own settings; their owner does not matter.
    own: BTreeSet<PathBuf>,
    folders: BTreeSet<PathBuf>,
}

impl FileAccess {
    /// Allows the usual directories, the agent's own files and their directories, and further directories.
    pub fn new(own: impl IntoIterator<Item = PathBuf>, further: impl IntoIterator<Item = PathBuf>) -> FileAccess {
        let own: BTreeSet<PathBuf> = own.into_iter().collect();
        // A file in `/` must not allow the whole file system.
        let parents = own.iter().filter_map(|file| file.parent()).filter(|folder| folder.file_name().is_some());
        let folders = USUAL.iter().map(PathBuf::from).chain(parents.map(Path::to_owned)).chain(further).collect();
        FileAccess { own, folders }
    }

    /// Reads a file; `None` if it is unchanged since `last`.
    pub(crate) fn read(&self, path: &Path, last: Option<FileStamp>) -> Result<Option<(Bytes, FileStamp)>, AccessError> {
        // Symbolic links are resolved first: the target is checked.
        let real = fs::canonicalize(path)?;
        self.check_directory(&real)?;
        let file = RegularFile::open(&real)?;
        let is_own = self.own.iter().any(|own| own == path);
        if !is_own && geteuid().is_root() && is_private_of_another(&file.about) {
            return Err(AccessError::Private(file.about.uid()));
        }
        let stamp = FileStamp::of(&file.about);
        if last == Some(stamp) && stamp.is_settled() {
            return Ok(None);
        }
        let content = file.read()?;
        Ok(Some((content.into(), stamp)))
    }

    fn check_directory(&self, real: &Path) -> Result<(), AccessError> {
        let is_below = |folder: &Path| fs::canonicalize(folder).is_ok_and(|folder| real.starts_with(folder));
        let is_never = NEVER.iter().any(|folder| real.starts_with(folder));
        if is_never || !self.folders.iter().any(|folder| is_below(folder)) {
            return Err(AccessError::NotAllowed(real.to_owned()));
        }
        Ok(())
    }
}

/// Root can read every file, but files private to another user are not served.
fn is_private_of_another(about: &Metadata) -> bool {
    about.uid() != 0 && about.mode() & 0o004 == 0
}

/// Metadata that changes whenever a file's content may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    device: u64,
    inode: u64,
    length: u64,
    changed: (i64, i64),
}

impl FileStamp {
    fn of(about: &Metadata) -> FileStamp {
        let changed = (about.ctime(), about.ctime_nsec());
        FileStamp { device: about.dev(), inode: about.ino(), length: about.len(), changed }
    }

    fn is_settled(&self) -> bool {
        let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(self.changed.0).unwrap_or_default());
        // If the clock was set back the timestamp is not trusted.
        SystemTime::now().duration_since(changed).is_ok_and(|age| age > UNSETTLED)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::path::{Path, PathBuf};

    use super::FileAccess;

    fn look(access: &FileAccess, path: &Path) -> String {
        match access.read(path, None) {
            Ok(Some((content, _))) => String::from_utf8_lossy(&content).into_owned(),
            Ok(None) => "unchanged".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn hole_10_files_outside_allowed_directories_are_not_read() {
        let [inside, outside] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let secret = outside.path().join("secret.pem");
        std::fs::write(&secret, "secret").unwrap();
        std::fs::write(inside.path().join("ca.pem"), "authority").unwrap();
        symlink(&secret, inside.path().join("link.pem")).unwrap();
        symlink("/dev/zero", inside.path().join("zero.pem")).unwrap();
        symlink(inside.path().join("ca.pem"), outside.path().join("back.pem")).unwrap();
        let access = FileAccess::new([], [inside.path().to_owned(), "/".into()]);
        assert!(look(&access, Path::new("/dev/zero")).contains("not in an allowed directory"));
        assert!(look(&access, Path::new("/proc/self/environ")).contains("not in an allowed directory"));
        let access = FileAccess::new([PathBuf::from("/top.pem")], [inside.path().to_owned()]);
        let up = inside.path().join("..").join(outside.path().file_name().unwrap()).join("secret.pem");
        for path in [secret.as_path(), &inside.path().join("link.pem"), &inside.path().join("zero.pem"), &up] {
            assert!(look(&access, path).contains("PILOTAGE_SECRET_FOLDERS"), "{}", path.display());
        }
        assert_eq!(look(&access, &inside.path().join("ca.pem")), "authority");
        assert_eq!(look(&access, &outside.path().join("back.pem")), "authority");
        assert!(look(&access, &inside.path().join("missing.pem")).contains("No such file"));
        // Files next to one from the agent's own settings.
        let access = FileAccess::new([secret.clone()], []);
        assert_eq!(look(&access, &secret), "secret");
    }

    /// Needs root: other users cannot read such files anyway.
    #[test]
    fn hole_10_private_files_of_other_users_are_not_read() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key.pem");
        std::fs::write(&file, "key").unwrap();
        let access = FileAccess::new([], [folder.path().to_owned()]);
        let owned = |user, mode| {
            chown(&file, Some(user), None).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        };
        owned(4711, 0o640);
        assert_eq!(look(&access, &file), "the file is private to user 4711");
        assert_eq!(look(&FileAccess::new([file.clone()], []), &file), "key");
        owned(4711, 0o644);
        assert_eq!(look(&access, &file), "key");
        owned(0, 0o600);
        assert_eq!(look(&access, &file), "key");
    }
}
