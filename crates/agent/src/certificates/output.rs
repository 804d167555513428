//! Writes certificates for other programs (`OUTPUT_CERTS`). The three files are links into one folder that is replaced as
//! a whole, as kubelet does it: a reader that resolves the folder once never sees a certificate and key that differ.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::TlsMaterial;

const FILES: [&str; 3] = ["key.pem", "cert-chain.pem", "root-cert.pem"];
/// The link to the current folder.
const CURRENT: &str = "..data";

/// The folder that certificates are written to.
pub(super) struct OutputFolder {
    folder: PathBuf,
    mode: u32,
}

impl OutputFolder {
    /// Files are private unless shared.
    pub(super) fn new(folder: PathBuf, is_shared: bool) -> OutputFolder {
        OutputFolder { folder, mode: if is_shared { 0o644 } else { 0o600 } }
    }

    pub(super) fn write(&self, material: &TlsMaterial) -> Result<()> {
        self.replace(material).with_context(|| format!("could not write certificates to {}", self.folder.display()))
    }

    fn replace(&self, material: &TlsMaterial) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let current = self.folder.join(CURRENT);
        let before = fs::read_link(&current).ok();
        let name = format!("..{:016x}", fastrand::u64(..));
        let next = self.folder.join(&name);
        fs::create_dir(&next)?;
        for (file, content) in FILES.iter().zip([&material.key, &material.chain, &material.root]) {
            self.create(&next.join(file), content)?;
        }
        link(Path::new(&name), &current)?;
        for file in FILES {
            let target = Path::new(CURRENT).join(file);
            let path = self.folder.join(file);
            if fs::read_link(&path).ok().as_deref() != Some(&target) {
                link(&target, &path)?;
            }
        }
        self.remove_all_but(&[Some(name.into()), before])
    }

    /// Removes folders of earlier writes. The last but one stays: a reader may have resolved the link to it.
    fn remove_all_but(&self, kept: &[Option<PathBuf>; 2]) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = PathBuf::from(entry.file_name());
            let is_ours = entry.file_name().to_str().is_some_and(|name| name.len() == 18 && name.starts_with(".."));
            if is_ours && entry.file_type()?.is_dir() && !kept.contains(&Some(name)) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }

    fn create(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().create_new(true).write(true).mode(self.mode).open(path)?;
        file.write_all(content)?;
        file.sync_all()
    }
}

/// Makes or replaces a link in one step.
fn link(target: &Path, path: &Path) -> io::Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    match fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(target, &part)?;
    fs::rename(&part, path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::{CURRENT, OutputFolder, TlsMaterial};

    fn material(version: usize) -> TlsMaterial {
        let text = |name: &str| format!("{name} {version} {}", "x".repeat(version % 7 * 1000)).into();
        TlsMaterial { chain: text("chain"), key: text("key"), root: text("root"), ..TlsMaterial::default() }
    }

    #[test]
    fn a_reader_never_sees_files_that_do_not_match() {
        let folder = tempfile::tempdir().unwrap();
        // Files that upstream's agent left.
        fs::write(folder.path().join("key.pem"), "old").unwrap();
        let output = OutputFolder::new(folder.path().to_owned(), false);
        output.write(&material(0)).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let reader = std::thread::spawn({
            let (path, done) = (folder.path().to_owned(), Arc::clone(&done));
            move || {
                let mut seen = 0;
                while !done.load(Ordering::Relaxed) {
                    assert!(fs::symlink_metadata(path.join(CURRENT)).is_ok(), "the link is gone");
                    // The folder may be removed after two more writes; then it is resolved again.
                    let Ok(real) = fs::canonicalize(path.join(CURRENT)) else { continue };
                    let read = |name: &str| fs::read_to_string(real.join(name));
                    let (Ok(key), Ok(chain)) = (read("key.pem"), read("cert-chain.pem")) else { continue };
                    assert_eq!(key.strip_prefix("key"), chain.strip_prefix("chain"));
                    let root = fs::read_to_string(path.join("root-cert.pem"));
                    assert!(root.is_err() || root.is_ok_and(|root| root.starts_with("root")));
                    seen += 1;
                }
                seen
            }
        });
        for version in 1..200 {
            output.write(&material(version)).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
        let key = folder.path().join("key.pem");
        assert!(fs::read_to_string(&key).unwrap().starts_with("key 199"));
        assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 6, "three links, the current folder, the one before, and the link");
    }
}
