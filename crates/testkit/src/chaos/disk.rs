//! A disk of one megabyte that a test can fill. Only root can mount it; other users run without this fault.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// Mounts a disk below this folder; `None` without the right to.
    pub(super) fn mount(folder: &Path) -> Option<SmallDisk> {
        let path = folder.join("disk");
        fs::create_dir(&path).unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(&path);
        let is_mounted = mount.output().is_ok_and(|output| output.status.success());
        is_mounted.then_some(SmallDisk { path })
    }

    /// A folder on the disk.
    pub(super) fn folder(&self, name: &str) -> PathBuf {
        let path = self.path.join(name);
        fs::create_dir_all(&path).unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        path
    }

    /// Uses up all its space.
    pub(super) fn fill(&self) {
        let Ok(mut file) = fs::File::create(self.path.join("full")) else { return };
        while file.write_all(&[0; 1024]).is_ok() {}
    }

    pub(super) fn clear(&self) {
        let _ = fs::remove_file(self.path.join("full"));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}
