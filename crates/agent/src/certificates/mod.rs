//! The workload's certificates: what is current, and who is told when it changes.
//! `files` watches them on disk; SDS and the process keeper read what is published here.

pub mod files;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;

/// A workload's identity and what it trusts, as PEM.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TlsMaterial {
    /// The workload's certificate and those between it and the root.
    pub chain: Bytes,
    /// The workload's private key.
    pub key: Bytes,
    /// Certificates that peers are checked against.
    pub root: Bytes,
}

/// Shows sizes only: a key must not reach a log.
impl fmt::Debug for TlsMaterial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [chain, key, root] = [&self.chain, &self.key, &self.root].map(Bytes::len);
        write!(f, "TlsMaterial {{ chain: {chain} bytes, key: {key} bytes, root: {root} bytes }}")
    }
}

/// What is current: `None` until there is something.
pub type CurrentMaterial = Option<Arc<TlsMaterial>>;

/// The one place where current material is found. Clones share it.
#[derive(Clone, Debug)]
pub struct CertificateStore {
    current: watch::Sender<CurrentMaterial>,
}

impl CertificateStore {
    pub fn new() -> CertificateStore {
        CertificateStore { current: watch::Sender::new(None) }
    }

    /// What is current now.
    pub fn current(&self) -> CurrentMaterial {
        self.current.borrow().clone()
    }

    /// A view that is told of every change; its first value is what is current.
    pub fn subscribe(&self) -> watch::Receiver<CurrentMaterial> {
        self.current.subscribe()
    }

    /// Replaces what is current. Equal material wakes nobody; the answer says whether it was new.
    pub fn publish(&self, material: TlsMaterial) -> bool {
        self.current.send_if_modified(|current| {
            let is_new = current.as_deref() != Some(&material);
            if is_new {
                *current = Some(Arc::new(material));
            }
            is_new
        })
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
        TlsMaterial { chain: "chain".into(), key: key.into(), root: "root".into() }
    }

    #[test]
    fn only_a_change_wakes_a_reader() {
        let store = CertificateStore::new();
        let mut reader = store.subscribe();
        assert!(store.current().is_none() && store.publish(material("a")));
        assert!(reader.has_changed().unwrap());
        reader.mark_unchanged();
        assert!(!store.publish(material("a")) && !reader.has_changed().unwrap());
        assert!(store.publish(material("b")) && reader.has_changed().unwrap());
    }

    #[test]
    fn a_key_is_never_printed() {
        assert!(!format!("{:?}", material("secret")).contains("secret"));
    }
}
