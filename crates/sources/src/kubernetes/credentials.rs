//! Secrets and ConfigMaps as credentials. For all of them the store knows what they can be used for; certificates and
//! keys are kept only of those that the mesh refers to.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::change::Credential;
use model::credential_refs::CredentialRefs;
use model::names::{CredentialKey, CredentialKind};

use super::interner::InternPool;

#[derive(Clone, Debug, Default)]
pub(super) struct CredentialStore {
    known: BTreeMap<CredentialKey, Arc<Credential>>,
    /// The credentials whose content is kept; `None` keeps all.
    named: Option<CredentialRefs>,
    bare: InternPool<Credential>,
}

/// The effect of new credential references.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CredentialDiff {
    /// Their content was dropped now.
    pub(super) dropped: Vec<CredentialKey>,
    /// Their content was dropped before and must be fetched.
    pub(super) to_fetch: Vec<CredentialKey>,
}

impl CredentialStore {
    pub(super) fn get(&self, key: &CredentialKey) -> Option<&Arc<Credential>> {
        self.known.get(key)
    }

    /// Whether a credential may be added to a store of at most `most`.
    pub(super) fn has_room(&self, key: &CredentialKey, most: usize) -> bool {
        self.known.len() < most || self.known.contains_key(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &CredentialKey> {
        self.known.keys()
    }

    /// Adds or replaces a credential; false if it is unchanged.
    pub(super) fn put(&mut self, key: &CredentialKey, data: &BTreeMap<String, String>) -> bool {
        let mut credential = credential(key.kind, data);
        if self.named.as_ref().is_some_and(|named| !named.contains(key)) {
            credential = credential.without_content();
        }
        if self.known.get(key).is_some_and(|known| **known == credential) {
            return false;
        }
        let kept = if credential.has_content() { Arc::new(credential) } else { self.bare.share(credential) };
        self.known.insert(key.clone(), kept);
        true
    }

    /// False if it was not known.
    pub(super) fn remove(&mut self, key: &CredentialKey) -> bool {
        self.known.remove(key).is_some()
    }

    /// Keeps certificates and keys of these credentials only.
    pub(super) fn keep(&mut self, named: CredentialRefs) -> CredentialDiff {
        let mut diff = CredentialDiff::default();
        for (key, credential) in &mut self.known {
            match named.contains(key) {
                true if credential.lacks_content() => diff.to_fetch.push(key.clone()),
                false if credential.has_content() => {
                    *credential = self.bare.share(Credential::clone(credential).without_content());
                    diff.dropped.push(key.clone());
                }
                _ => {}
            }
        }
        self.named = Some(named);
        diff
    }

    /// Adds fetched content, unless the watch has reported a change or the deletion since.
    pub(super) fn put_fetched(&mut self, key: &CredentialKey, data: &BTreeMap<String, String>) -> bool {
        self.known.get(key).is_some_and(|known| known.lacks_content()) && self.put(key, data)
    }
}

/// The credential that the entries form. A value of a Secret that is not base64 counts as empty.
fn credential(kind: CredentialKind, data: &BTreeMap<String, String>) -> Credential {
    let bytes = |value: &String| match kind {
        CredentialKind::Secret => BASE64_STANDARD.decode(value).unwrap_or_default(),
        CredentialKind::ConfigMap => value.clone().into_bytes(),
    };
    let entries: Vec<(&str, Vec<u8>)> = data.iter().map(|(key, value)| (key.as_str(), bytes(value))).collect();
    Credential::of(entries.iter().map(|(key, value)| (*key, value.as_slice())))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use model::config::parse::documents;
    use model::credential_refs::CredentialRefs;
    use model::names::{CredentialKey, CredentialKind};

    use super::CredentialStore;

    fn key(name: &str) -> CredentialKey {
        CredentialKey { kind: CredentialKind::ConfigMap, namespace: "shop".into(), name: name.into() }
    }

    /// A CA certificate.
    fn data(content: &str) -> BTreeMap<String, String> {
        // Two different minimal DER sequences.
        let body = if content == "old" { "MAMCAQE=" } else { "MAMCAQI=" };
        let text = format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n");
        BTreeMap::from([("ca.crt".to_owned(), text)])
    }

    fn naming(name: &str) -> CredentialRefs {
        let text = format!(
            "{{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {{name: a, namespace: shop}}, spec: \
             {{host: a, trafficPolicy: {{tls: {{mode: SIMPLE, credentialName: 'configmap://shop/{name}'}}}}}}}}"
        );
        CredentialRefs::of(&documents(&text, "test.yaml").objects)
    }

    fn is_held(credentials: &CredentialStore, name: &str) -> bool {
        credentials.get(&key(name)).is_some_and(|known| known.has_content())
    }

    #[test]
    fn content_is_kept_of_referenced_credentials_and_of_all_until_these_are_known() {
        let mut credentials = CredentialStore::default();
        assert!(credentials.put(&key("a"), &data("old")) && credentials.put(&key("b"), &data("old")));
        assert!(is_held(&credentials, "a") && is_held(&credentials, "b"));
        let diff = credentials.keep(naming("a"));
        assert_eq!((diff.dropped, diff.to_fetch), (vec![key("b")], vec![]));
        assert!(is_held(&credentials, "a") && !is_held(&credentials, "b"));
        assert!(!credentials.put(&key("b"), &data("new")), "its possible use did not change");
        assert!(credentials.get(&key("b")).is_some_and(|known| known.ca_error.is_none()));
    }

    #[test]
    fn new_references_are_fetched_and_events_of_the_watch_win() {
        let mut credentials = CredentialStore::default();
        credentials.keep(CredentialRefs::default());
        for name in ["fetched", "changed", "deleted"] {
            credentials.put(&key(name), &data("old"));
            assert_eq!(credentials.keep(naming(name)).to_fetch, [key(name)]);
        }
        credentials.keep(naming("fetched"));
        assert!(credentials.put_fetched(&key("fetched"), &data("new")) && is_held(&credentials, "fetched"));
        credentials.keep(naming("changed"));
        assert!(credentials.put(&key("changed"), &data("new")));
        assert!(!credentials.put_fetched(&key("changed"), &data("old")), "the response is older than the event");
        credentials.remove(&key("deleted"));
        assert!(!credentials.put_fetched(&key("deleted"), &data("old")) && credentials.get(&key("deleted")).is_none());
    }
}
