//! The workload's certificate files: found where upstream looks for them, and published again when they change.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bytes::Bytes;
use net::watch::{FilePolling, PolledFiles};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};
use xxhash_rust::xxh3::Xxh3;

use super::{CertificateStore, TlsMaterial};
use crate::regular_file;

/// Directories with `cert-chain.pem`, `key.pem` and `root-cert.pem`: workload credentials, and Pilot 0.8's.
const FOLDERS: [&str; 3] = ["./var/run/secrets/workload-spiffe-credentials", "./etc/certs", "/etc/certs"];

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
        CertificateFiles::find_in_folders()
    }

    /// The files of the first known directory with a chain.
    pub fn find_in_folders() -> Option<CertificateFiles> {
        CertificateFiles::in_folders().find(|files| files.chain.exists())
    }

    /// The files of all known directories, which may not exist.
    pub fn in_folders() -> impl Iterator<Item = CertificateFiles> {
        FOLDERS.iter().map(|folder| CertificateFiles::in_folder(Path::new(folder)))
    }

    /// Reads all three files.
    pub fn read(&self) -> Result<TlsMaterial> {
        let read = |path: &Path| {
            regular_file::read(path)
                .map(Bytes::from)
                .with_context(|| format!("could not read the certificate {}", path.display()))
        };
        let (chain, key, root) = (read(&self.chain)?, read(&self.key)?, read(&self.root)?);
        Ok(TlsMaterial { chain, key, root, ..TlsMaterial::default() })
    }

    /// The three paths.
    pub fn paths(&self) -> Vec<PathBuf> {
        vec![self.chain.clone(), self.key.clone(), self.root.clone()]
    }

    /// Publishes the certificates, and again whenever their content changes. Returns only when the runtime shuts down.
    pub async fn publish(self, store: CertificateStore, polling: FilePolling) {
        let chain = self.chain.clone();
        // The cause as text, which can be compared: it is logged when it changes.
        let mut files = PolledFiles::new(polling, move || self.read().map_err(|error| format!("{error:#}")));
        while let Some(content) = files.changed().await {
            match content {
                Ok(material) if store.publish(material.clone()) => {
                    info!(chain = %chain.display(), "certificates changed");
                }
                Ok(_) => {}
                Err(error) => warn!("{error}; keeping the certificates in use"),
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use net::watch::FilePolling;

    use super::super::CertificateStore;
    use super::{CertificateFiles, fingerprint};

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
