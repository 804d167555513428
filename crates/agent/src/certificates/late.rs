//! Certificate files that are mounted while the agent runs, such as an optional Secret that is made later.

use net::watch::{FilePolling, PolledFiles};
use tracing::{info, warn};

use super::CertificateStore;
use super::files::CertificateFiles;
use crate::late_certificates::LateCertificates;

/// Waits until `find` finds files and all of them can be read. Publishes them, and again whenever they change. Returns only
/// when the runtime shuts down.
pub async fn follow(
    late: LateCertificates,
    find: impl Fn() -> Option<CertificateFiles> + Send + Sync + 'static,
    store: CertificateStore,
    polling: FilePolling,
) {
    let mut looked = PolledFiles::new(polling, move || {
        find().map(|files| files.read().map(|material| (files, material)).map_err(|error| format!("{error:#}")))
    });
    while let Some(found) = looked.changed().await {
        match found {
            None => {}
            Some(Err(error)) => warn!("{error}; traffic stays plain text until the file can be read"),
            Some(Ok((files, material))) => {
                info!(chain = %files.chain.display(), "certificates found");
                store.publish(material.clone());
                late.set_found();
                return files.clone().publish(store, polling).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use net::watch::FilePolling;

    use super::super::CertificateStore;
    use super::super::files::CertificateFiles;
    use super::{LateCertificates, follow};

    #[tokio::test]
    async fn files_are_found_when_all_of_them_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let files = CertificateFiles::in_folder(folder.path());
        let (late, store) = (LateCertificates::default(), CertificateStore::new());
        let polling = FilePolling { period: Duration::from_millis(5), settle: Duration::from_millis(5) };
        let find = {
            let files = files.clone();
            move || files.chain.exists().then(|| files.clone())
        };
        let watch = tokio::spawn(follow(late.clone(), find, store.clone(), polling));
        fs::write(&files.chain, "chain").unwrap();
        fs::write(&files.key, "key").unwrap();
        assert!(!late.are_found() && store.current().is_none());
        fs::write(&files.root, "root").unwrap();
        late.wait().await;
        assert_eq!(store.current().unwrap().chain, "chain");
        // Then they are followed as files that were there from the start.
        let mut reader = store.subscribe();
        reader.mark_unchanged();
        fs::write(&files.chain, "renewed").unwrap();
        reader.changed().await.unwrap();
        assert_eq!(store.current().unwrap().chain, "renewed");
        watch.abort();
    }
}
