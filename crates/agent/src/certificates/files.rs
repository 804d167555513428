//! The workload's certificate files: found where upstream looks for them, and polled for changes. Polling is used
//! because mounted secrets are symbolic links that are swapped, which inotify does not see on the file.

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

/// Directories with `cert-chain.pem`, `key.pem` and `root-cert.pem`: workload credentials, and Pilot 0.8's.
const FOLDERS: [&str; 3] = ["./var/run/secrets/workload-spiffe-credentials", "./etc/certs", "/etc/certs"];

/// How often files are polled.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct FilePolling {
    /// Time between two polls.
    pub period: Duration,
    /// How long files must be unchanged before they are read: the three files are not written atomically.
    pub settle: Duration,
}

/// Paths of a workload's certificate chain, private key and trusted roots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateFiles {
    pub chain: PathBuf,
    pub key: PathBuf,
    pub root: PathBuf,
}

impl CertificateFiles {
    /// The standard file names in a directory.
    pub fn in_folder(folder: &Path) -> CertificateFiles {
        let [chain, key, root] = ["cert-chain.pem", "key.pem", "root-cert.pem"].map(|name| folder.join(name));
        CertificateFiles { chain, key, root }
    }

    /// Paths from node metadata (TLS_CLIENT_CERT_CHAIN and so on), else the first known directory with a chain.
    pub fn find(metadata: impl Fn(&str) -> Option<String>) -> Option<CertificateFiles> {
        let named = |name: &str| metadata(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        let by_metadata =
            named("TLS_CLIENT_CERT_CHAIN").zip(named("TLS_CLIENT_KEY")).zip(named("TLS_CLIENT_ROOT_CERT"));
        if let Some(((chain, key), root)) = by_metadata {
            return Some(CertificateFiles { chain, key, root });
        }
        FOLDERS.iter().map(|folder| CertificateFiles::in_folder(Path::new(folder))).find(|files| files.chain.exists())
    }

    /// Reads all three files.
    pub fn read(&self) -> Result<TlsMaterial> {
        let read = |path: &Path| {
            regular_file::read(path)
                .map(Bytes::from)
                .with_context(|| format!("could not read the certificate {}", path.display()))
        };
        Ok(TlsMaterial { chain: read(&self.chain)?, key: read(&self.key)?, root: read(&self.root)? })
    }

    /// The three paths.
    pub fn paths(&self) -> Vec<PathBuf> {
        vec![self.chain.clone(), self.key.clone(), self.root.clone()]
    }

    /// Publishes the certificates, and again whenever their content changes. Never returns.
    pub async fn publish(self, store: CertificateStore, polling: FilePolling) {
        let mut logged = String::new();
        let paths = self.paths();
        let look = move || match self.read() {
            Ok(material) => {
                logged.clear();
                if store.publish(material) {
                    info!(chain = %self.chain.display(), "certificates changed");
                }
            }
            Err(error) => {
                let text = format!("{error:#}");
                if text != logged {
                    warn!("{text}; keeping the certificates in use");
                    logged = text;
                }
            }
        };
        watch(paths, polling, look).await;
    }
}

/// Calls `look` once, then whenever a file may have changed and all files have settled. File access happens on blocking
/// threads: a dead mount must not block the agent.
pub async fn watch(paths: Vec<PathBuf>, polling: FilePolling, mut look: impl FnMut() + Send + 'static) {
    let mut ticks = interval(polling.period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let paths = Arc::new(paths);
    let mut previous = FileStats::new();
    loop {
        ticks.tick().await;
        let mut now = file_stats_of(&paths).await;
        if now == previous {
            continue;
        }
        while !previous.is_empty() {
            sleep(polling.settle).await;
            let later = file_stats_of(&paths).await;
            if later == now {
                break;
            }
            now = later;
        }
        previous = now;
        let looked = spawn_blocking(move || {
            look();
            look
        });
        match looked.await {
            Ok(again) => look = again,
            // The runtime is shutting down.
            Err(_) => return,
        }
    }
}

async fn file_stats_of(paths: &Arc<Vec<PathBuf>>) -> FileStats {
    let paths = Arc::clone(paths);
    spawn_blocking(move || file_stats(&paths)).await.unwrap_or_default()
}

/// Hash of the content of all files. An unreadable file counts as empty.
pub fn fingerprint(paths: &[PathBuf]) -> u128 {
    let mut hash = Xxh3::new();
    for content in paths.iter().map(|path| regular_file::read(path).unwrap_or_default()) {
        hash.update(&content.len().to_le_bytes());
        hash.update(&content);
    }
    hash.digest128()
}

/// Metadata that changes whenever a file's content may have changed.
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
    async fn changed_content_is_published_once() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "1");
        let store = CertificateStore::new();
        let mut reader = store.subscribe();
        let polling = FilePolling { period: Duration::from_millis(5), settle: Duration::from_millis(5) };
        let watch = tokio::spawn(CertificateFiles::in_folder(folder.path()).publish(store.clone(), polling));
        reader.changed().await.unwrap();
        assert_eq!(reader.borrow_and_update().as_ref().unwrap().key, "key.pem 1");
        // The same content in new files is not a change; a file that disappears keeps the old content.
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
    fn fingerprint_depends_on_content() {
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
    fn paths_from_metadata_come_before_known_directories() {
        let named = |name: &str| Some(format!("/x/{name}"));
        let files = CertificateFiles::find(named).unwrap();
        assert_eq!(files.key.to_str(), Some("/x/TLS_CLIENT_KEY"));
    }
}
