//! The workload's current certificates, with change notification. `files` reads them from disk, `issued` obtains them from
//! the certificate authority; SDS serves them.

mod ca;
pub mod files;
pub mod issued;
mod output;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

/// A workload's certificate, key and trusted roots, as PEM.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TlsMaterial {
    /// The workload's certificate and intermediates.
    pub chain: Bytes,
    /// The workload's private key.
    pub key: Bytes,
    /// Roots that peer certificates are verified with.
    pub root: Bytes,
    /// Lists of revoked certificates; empty if there are none.
    pub revoked: Bytes,
}

/// Prints sizes only: a key must not be logged.
impl fmt::Debug for TlsMaterial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [chain, key, root] = [&self.chain, &self.key, &self.root].map(Bytes::len);
        write!(f, "TlsMaterial {{ chain: {chain} bytes, key: {key} bytes, root: {root} bytes }}")
    }
}

/// The current certificates; `None` until the first are read.
pub type CurrentMaterial = Option<Arc<TlsMaterial>>;

/// Holds the current certificates. Clones share the same value.
#[derive(Clone, Debug)]
pub struct CertificateStore {
    current: watch::Sender<CurrentMaterial>,
    /// Added to all certificates.
    revoked: Arc<Mutex<Bytes>>,
}

impl CertificateStore {
    pub fn new() -> CertificateStore {
        CertificateStore { current: watch::Sender::new(None), revoked: Arc::default() }
    }

    /// The current certificates.
    pub fn current(&self) -> CurrentMaterial {
        self.current.borrow().clone()
    }

    /// A receiver of every change; it starts with the current value.
    pub fn subscribe(&self) -> watch::Receiver<CurrentMaterial> {
        self.current.subscribe()
    }

    /// Replaces the current certificates. Returns false, and notifies no receiver, if they are equal.
    pub fn publish(&self, material: TlsMaterial) -> bool {
        let revoked = self.revoked.lock();
        let material = TlsMaterial { revoked: revoked.clone(), ..material };
        self.current.send_if_modified(|current| {
            let is_new = current.as_deref() != Some(&material);
            if is_new {
                *current = Some(Arc::new(material));
            }
            is_new
        })
    }
}

impl CertificateStore {
    /// Replaces the revocation lists.
    pub fn publish_revoked(&self, lists: Bytes) {
        let mut revoked = self.revoked.lock();
        revoked.clone_from(&lists);
        self.current.send_if_modified(|current| match current {
            Some(material) if material.revoked != lists => {
                *material = Arc::new(TlsMaterial { revoked: lists, ..TlsMaterial::clone(material) });
                true
            }
            _ => false,
        });
    }
}

impl Default for CertificateStore {
    fn default() -> CertificateStore {
        CertificateStore::new()
    }
}

#[cfg(test)]
mod tests {
    use super::{CertificateStore, TlsMaterial};

    fn material(key: &'static str) -> TlsMaterial {
        TlsMaterial { chain: "chain".into(), key: key.into(), root: "root".into(), ..TlsMaterial::default() }
    }

    #[test]
    fn only_changes_notify_receivers() {
        let store = CertificateStore::new();
        let mut reader = store.subscribe();
        assert!(store.current().is_none() && store.publish(material("a")));
        assert!(reader.has_changed().unwrap());
        reader.mark_unchanged();
        assert!(!store.publish(material("a")) && !reader.has_changed().unwrap());
        assert!(store.publish(material("b")) && reader.has_changed().unwrap());
    }

    #[test]
    fn revocation_lists_are_added_to_all_certificates() {
        let store = CertificateStore::new();
        store.publish_revoked("one".into());
        assert!(store.current().is_none());
        store.publish(material("a"));
        let mut reader = store.subscribe();
        assert_eq!(store.current().unwrap().revoked, "one");
        reader.mark_unchanged();
        store.publish_revoked("one".into());
        assert!(!reader.has_changed().unwrap());
        store.publish_revoked("two".into());
        assert!(reader.has_changed().unwrap());
        store.publish(material("b"));
        assert_eq!(store.current().unwrap().revoked, "two");
    }

    #[test]
    fn a_key_is_never_printed() {
        assert!(!format!("{:?}", material("secret")).contains("secret"));
    }
}
