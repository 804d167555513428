//! Certificates that lie on disk: found where upstream looks for them, watched by content.
//! They are looked at again and again: mounted secrets are symbolic links that change underneath a file watch.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{info, warn};
use xxhash_rust::xxh3::Xxh3;

use super::{CertificateStore, TlsMaterial};
use crate::regular_file;

/// Folders with `cert-chain.pem`, `key.pem` and `root-cert.pem`: of a workload's identity, and Pilot 0.8's.
const FOLDERS: [&str; 3] = ["./var/run/secrets/workload-spiffe-credentials", "./etc/certs", "/etc/certs"];

/// How closely files are watched.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct FilePolling {
    /// Time between two looks.
    pub period: Duration,
    /// How long files must be left alone before they count: three are not written at once.
    pub settle: Duration,
}

/// Where the parts of a workload's material lie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateFiles {
    pub chain: PathBuf,
    pub key: PathBuf,
    pub root: PathBuf,
}

impl CertificateFiles {
    /// The usual names in a folder.
    pub fn in_folder(folder: &Path) -> CertificateFiles {
        let [chain, key, root] = ["cert-chain.pem", "key.pem", "root-cert.pem"].map(|name| folder.join(name));
        CertificateFiles { chain, key, root }
    }

    /// Paths by node metadata (TLS_CLIENT_CERT_CHAIN and so on), else the first known folder that has a chain.
    pub fn find(metadata: impl Fn(&str) -> Option<String>) -> Option<CertificateFiles> {
        let named = |name: &str| metadata(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        let by_metadata =
            named("TLS_CLIENT_CERT_CHAIN").zip(named("TLS_CLIENT_KEY")).zip(named("TLS_CLIENT_ROOT_CERT"));
        if let Some(((chain, key), root)) = by_metadata {
            return Some(CertificateFiles { chain, key, root });
        }
        FOLDERS.iter().map(|folder| CertificateFiles::in_folder(Path::new(folder))).find(|files| files.chain.exists())
    }

    /// The whole material as it is now.
    pub fn read(&self) -> Result<TlsMaterial> {
        let read = |path: &Path| {
            regular_file::read(path)
                .map(Bytes::from)
                .with_context(|| format!("could not read the certificate {}", path.display()))
        };
        Ok(TlsMaterial { chain: read(&self.chain)?, key: read(&self.key)?, root: read(&self.root)? })
    }

    /// All three.
    pub fn paths(&self) -> Vec<PathBuf> {
        vec![self.chain.clone(), self.key.clone(), self.root.clone()]
    }

    /// Publishes what the files hold, and every change of it, for as long as it is polled.
    pub async fn publish(self, store: CertificateStore, polling: FilePolling) {
        let mut logged = String::new();
        let paths = self.paths();
        let look = move || match self.read() {
            Ok(material) => {
                logged.clear();
                if store.publish(material) {
                    info!(chain = %self.chain.display(), "certificates are new");
                }
            }
            // What was good before stays in use.
            Err(error) => {
                let text = format!("{error:#}");
                if text != logged {
                    warn!("{text}; what is in use stays");
                    logged = text;
                }
            }
        };
        watch(paths, polling, look).await;
    }
}

/// Calls `look` at first, and whenever one of the files may have changed and all are left alone again. Files are looked
/// at on another thread: one on a dead mount must not stop the agent.
pub async fn watch(paths: Vec<PathBuf>, polling: FilePolling, mut look: impl FnMut() + Send + 'static) {
    let mut ticks = interval(polling.period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let paths = Arc::new(paths);
    let mut seen = FileStats::new();
    loop {
        ticks.tick().await;
        let mut now = file_stats_of(&paths).await;
        if now == seen {
            continue;
        }
        while !seen.is_empty() {
            sleep(polling.settle).await;
            let later = file_stats_of(&paths).await;
            if later == now {
                break;
            }
            now = later;
        }
        seen = now;
        let looked = spawn_blocking(move || {
            look();
            look
        });
        match looked.await {
            Ok(again) => look = again,
            // The agent ends.
            Err(_) => return,
        }
    }
}

async fn file_stats_of(paths: &Arc<Vec<PathBuf>>) -> FileStats {
    let paths = Arc::clone(paths);
    spawn_blocking(move || file_stats(&paths)).await.unwrap_or_default()
}

/// Equal for equal content of all files; one that cannot be read counts as empty.
pub fn fingerprint(paths: &[PathBuf]) -> u128 {
    let mut hash = Xxh3::new();
    for content in paths.iter().map(|path| regular_file::read(path).unwrap_or_default()) {
        hash.update(&content.len().to_le_bytes());
        hash.update(&content);
    }
    hash.digest128()
}

/// Cheap to ask, and different whenever a file may be.
fn file_stats(paths: &[PathBuf]) -> FileStats {
    let mark = |data: Metadata| (data.ino(), data.len(), data.mtime(), data.mtime_nsec());
    paths.iter().map(|path| fs::metadata(path).map(mark).map_err(|error| error.kind())).collect()
}

type FileStat = (u64, u64, i64, i64);
type FileStats = Vec<Result<FileStat, io::ErrorKind>>;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::super::CertificateStore;
    use super::{CertificateFiles, FilePolling, fingerprint};

    fn write(folder: &std::path::Path, version: &str) {
        for name in ["cert-chain.pem", "key.pem", "root-cert.pem"] {
            fs::write(folder.join(name), format!("{name} {version}")).unwrap();
        }
    }

    #[tokio::test]
    async fn a_change_of_content_is_published_once() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "1");
        let store = CertificateStore::new();
        let mut reader = store.subscribe();
        let polling = FilePolling { period: Duration::from_millis(5), settle: Duration::from_millis(5) };
        let watch = tokio::spawn(CertificateFiles::in_folder(folder.path()).publish(store.clone(), polling));
        reader.changed().await.unwrap();
        assert_eq!(reader.borrow_and_update().as_ref().unwrap().key, "key.pem 1");
        // The same content in new files is no change, and a file that vanishes leaves what was there.
        write(folder.path(), "1");
        fs::remove_file(folder.path().join("key.pem")).unwrap();
        tokio::time::sleep(20 * polling.period).await;
        assert!(!reader.has_changed().unwrap() && store.current().is_some());
        write(folder.path(), "2");
        reader.changed().await.unwrap();
        assert_eq!(reader.borrow_and_update().as_ref().unwrap().chain, "cert-chain.pem 2");
        watch.abort();
    }

    #[test]
    fn a_fingerprint_tells_contents_apart() {
        let folder = tempfile::tempdir().unwrap();
        let paths = CertificateFiles::in_folder(folder.path()).paths();
        let of = |version| {
            write(folder.path(), version);
            fingerprint(&paths)
        };
        let empty = fingerprint(&paths);
        assert!(of("1") != empty && of("1") != of("2") && of("2") == of("2"));
    }

    #[test]
    fn metadata_names_files_before_any_folder() {
        let named = |name: &str| Some(format!("/x/{name}"));
        let files = CertificateFiles::find(named).unwrap();
        assert_eq!(files.key.to_str(), Some("/x/TLS_CLIENT_KEY"));
    }
}
