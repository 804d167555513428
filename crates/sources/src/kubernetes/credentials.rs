//! What is known of Secrets and ConfigMaps: of all what they could be used for, and certificates and keys of those alone
//! that the mesh names.

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
    /// Those of which more is kept than what they could be used for; until it is told, all.
    named: Option<CredentialRefs>,
    bare: InternPool<Credential>,
}

/// What it means that other credentials are named than before.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CredentialDiff {
    /// Their content was let go now.
    pub(super) bared: Vec<CredentialKey>,
    /// Their content was let go before and must be asked for.
    pub(super) missing: Vec<CredentialKey>,
}

impl CredentialStore {
    pub(super) fn get(&self, key: &CredentialKey) -> Option<&Arc<Credential>> {
        self.known.get(key)
    }

    /// Whether a credential may be taken in where there are at most `most`.
    pub(super) fn has_room(&self, key: &CredentialKey, most: usize) -> bool {
        self.known.len() < most || self.known.contains_key(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &CredentialKey> {
        self.known.keys()
    }

    /// Takes entries in; false where they mean what they meant.
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

    /// False where it was not known.
    pub(super) fn remove(&mut self, key: &CredentialKey) -> bool {
        self.known.remove(key).is_some()
    }

    /// Keeps certificates and keys of these alone. What comes from now on is kept; what went before must be asked for.
    pub(super) fn want(&mut self, named: CredentialRefs) -> CredentialDiff {
        let mut renamed = CredentialDiff::default();
        for (key, credential) in &mut self.known {
            match named.contains(key) {
                true if credential.lacks_content() => renamed.missing.push(key.clone()),
                false if credential.has_content() => {
                    *credential = self.bare.share(Credential::clone(credential).without_content());
                    renamed.bared.push(key.clone());
                }
                _ => {}
            }
        }
        self.named = Some(named);
        renamed
    }

    /// Takes in what was asked for. Where the watch has told of it since, even that it is gone, that counts.
    pub(super) fn supply(&mut self, key: &CredentialKey, data: &BTreeMap<String, String>) -> bool {
        self.known.get(key).is_some_and(|known| known.lacks_content()) && self.put(key, data)
    }
}

/// What the entries can be used for. A value that is not in base64, as a Secret's must be, counts as empty.
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

    /// The certificate of an authority.
    fn data(content: &str) -> BTreeMap<String, String> {
        // The smallest sequences that are one; they differ.
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
    fn content_is_kept_of_what_is_named_and_of_all_until_that_is_known() {
        let mut credentials = CredentialStore::default();
        assert!(credentials.put(&key("a"), &data("old")) && credentials.put(&key("b"), &data("old")));
        assert!(is_held(&credentials, "a") && is_held(&credentials, "b"));
        let renamed = credentials.want(naming("a"));
        assert_eq!((renamed.bared, renamed.missing), (vec![key("b")], vec![]));
        assert!(is_held(&credentials, "a") && !is_held(&credentials, "b"));
        assert!(!credentials.put(&key("b"), &data("new")), "what it is good for did not change");
        assert!(credentials.get(&key("b")).is_some_and(|known| known.ca_error.is_none()));
    }

    #[test]
    fn what_is_named_later_is_asked_for_and_the_watch_has_the_last_word() {
        let mut credentials = CredentialStore::default();
        credentials.want(CredentialRefs::default());
        for name in ["asked", "told", "gone"] {
            credentials.put(&key(name), &data("old"));
            assert_eq!(credentials.want(naming(name)).missing, [key(name)]);
        }
        credentials.want(naming("asked"));
        assert!(credentials.supply(&key("asked"), &data("new")) && is_held(&credentials, "asked"));
        credentials.want(naming("told"));
        assert!(credentials.put(&key("told"), &data("new")));
        assert!(!credentials.supply(&key("told"), &data("old")), "the answer is older than the event");
        credentials.remove(&key("gone"));
        assert!(!credentials.supply(&key("gone"), &data("old")) && credentials.get(&key("gone")).is_none());
    }
}
