//! The workload's current certificates, with change notification. `files` reads them from disk, `late`
//! waits for files that are not there yet, `issued` obtains them from the certificate authority; SDS serves them.

mod ca;
pub mod files;
pub mod issued;
pub mod late;
mod output;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use trust::bundle::RootBundle;

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
    additions: Arc<Mutex<Additions>>,
    /// Why the last attempt to get certificates failed.
    failure: watch::Sender<Option<String>>,
}

/// What is added to all certificates.
#[derive(Debug, Default)]
struct Additions {
    revoked: Bytes,
    /// Further roots, of the mesh's trust bundle.
    bundle: RootBundle,
    /// The roots that came with the certificates.
    own_root: Bytes,
}

impl Additions {
    /// All roots, without duplicates.
    fn root(&self) -> Bytes {
        if self.bundle.roots().is_empty() {
            return self.own_root.clone();
        }
        let own = std::str::from_utf8(&self.own_root).ok().and_then(|text| RootBundle::from_pem(text).ok());
        own.map_or_else(|| self.own_root.clone(), |own| own.with(&self.bundle).to_pem().into())
    }
}

impl CertificateStore {
    pub fn new() -> CertificateStore {
        CertificateStore {
            current: watch::Sender::new(None),
            additions: Arc::default(),
            failure: watch::Sender::new(None),
        }
    }

    /// The current certificates.
    pub fn current(&self) -> CurrentMaterial {
        self.current.borrow().clone()
    }

    /// A receiver of every change; it starts with the current value.
    pub fn subscribe(&self) -> watch::Receiver<CurrentMaterial> {
        self.current.subscribe()
    }

    /// Why there are no certificates, if the last attempt to get them failed.
    pub fn failures(&self) -> watch::Receiver<Option<String>> {
        self.failure.subscribe()
    }

    /// Notes that an attempt to get certificates failed. The current ones stay in use.
    pub fn fail(&self, reason: String) {
        self.failure.send_replace(Some(reason));
    }

    /// Replaces the current certificates. Returns false, and notifies no receiver, if they are equal.
    pub fn publish(&self, material: TlsMaterial) -> bool {
        let mut additions = self.additions.lock();
        additions.own_root = material.root.clone();
        self.failure.send_replace(None);
        let material = TlsMaterial { revoked: additions.revoked.clone(), root: additions.root(), ..material };
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
        let mut additions = self.additions.lock();
        additions.revoked.clone_from(&lists);
        self.current.send_if_modified(|current| match current {
            Some(material) if material.revoked != lists => {
                *material = Arc::new(TlsMaterial { revoked: lists, ..TlsMaterial::clone(material) });
                true
            }
            _ => false,
        });
    }

    /// Replaces the further roots, which are trusted in addition to those of the certificates.
    pub fn publish_bundle(&self, bundle: RootBundle) {
        let mut additions = self.additions.lock();
        additions.bundle = bundle;
        let root = additions.root();
        self.current.send_if_modified(|current| match current {
            Some(material) if material.root != root => {
                *material = Arc::new(TlsMaterial { root, ..TlsMaterial::clone(material) });
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
    use super::{CertificateStore, RootBundle, TlsMaterial};

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
    fn roots_of_a_bundle_are_added_to_those_of_the_certificates() {
        let root = |name: &str| {
            let mut params = rcgen::CertificateParams::default();
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().replace("\r\n", "\n")
        };
        let (own, far) = (root("own"), root("far"));
        let bundle = |text: &str| RootBundle::from_pem(text).unwrap();
        let with = |root: &str| TlsMaterial { root: root.to_owned().into(), ..material("a") };
        let store = CertificateStore::new();
        store.publish_bundle(bundle(&far));
        store.publish(with(&own));
        let both = own.clone() + &far;
        assert_eq!(store.current().unwrap().root, both);
        // A renewed certificate and a bundle that repeats the own root change nothing.
        let reader = store.subscribe();
        assert!(!store.publish(with(&own)));
        store.publish_bundle(bundle(&(own.clone() + &far)));
        assert!(!reader.has_changed().unwrap());
        store.publish_bundle(RootBundle::default());
        assert_eq!(store.current().unwrap().root, own);
    }

    #[test]
    fn a_key_is_never_printed() {
        assert!(!format!("{:?}", material("secret")).contains("secret"));
    }
}
