//! Requests from the model to the sources: key sets and credentials that config objects refer to. Only names are
//! requested; the results arrive as ordinary `Change`s.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::istio::security::v1beta1::{JwtRule, RequestAuthentication};

use crate::config::{Config, Key, Kind};
use crate::credential_refs::CredentialRefs;
use crate::names::Str;

/// Default timeout of a fetch, as in upstream.
const KEY_TIMEOUT: Duration = Duration::from_secs(5);

/// Everything that sources have to fetch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchRequests {
    pub keys: BTreeMap<KeySource, KeyRequest>,
    /// Secrets and ConfigMaps whose content is needed.
    pub credentials: CredentialRefs,
}

/// Where the key set of a token issuer is fetched from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeySource {
    /// This URL.
    Uri(Str),
    /// The `jwks_uri` of this issuer's OpenID configuration.
    Issuer(Str),
}

/// The policies that need a key set, and the longest of their timeouts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRequest {
    pub timeout: Duration,
    pub by: BTreeSet<Key>,
}

/// Fetched key sets.
pub type KeySets = BTreeMap<KeySource, Str>;

impl FetchRequests {
    /// The key sets of these policies, and these credentials.
    pub fn of(policies: &[Config<RequestAuthentication>], credentials: CredentialRefs) -> FetchRequests {
        let mut requests = FetchRequests { credentials, ..FetchRequests::default() };
        for policy in policies {
            let key = policy.meta.key(Kind::RequestAuthentication);
            for rule in &policy.spec.jwt_rules {
                let Some(source) = KeySource::of(rule) else { continue };
                let request = requests.keys.entry(source).or_default();
                request.timeout = request.timeout.max(timeout(rule));
                request.by.insert(key.clone());
            }
        }
        requests
    }
}

impl KeySource {
    /// The source of a rule's keys; `None` if they are inline, or if it has no source.
    pub fn of(rule: &JwtRule) -> Option<KeySource> {
        if !rule.jwks.is_empty() {
            return None;
        }
        match (rule.jwks_uri.as_str(), rule.issuer.as_str()) {
            ("", "") => None,
            ("", issuer) => Some(KeySource::Issuer(issuer.into())),
            (uri, _) => Some(KeySource::Uri(uri.into())),
        }
    }
}

impl std::fmt::Display for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KeySource::Uri(uri) => f.write_str(uri),
            KeySource::Issuer(issuer) => write!(f, "issuer {issuer}"),
        }
    }
}

fn timeout(rule: &JwtRule) -> Duration {
    let timeout = rule.timeout.and_then(|timeout| Duration::try_from(timeout).ok());
    timeout.filter(|timeout| !timeout.is_zero()).unwrap_or(KEY_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use api::istio::security::v1beta1::{JwtRule, RequestAuthentication};

    use super::{FetchRequests, KeySource};
    use crate::config::{Config, Meta};
    use crate::credential_refs::CredentialRefs;
    use crate::hashed::Hashed;

    fn policy(name: &str, rules: Vec<JwtRule>) -> Config<RequestAuthentication> {
        let meta = Meta { name: name.into(), namespace: "shop".into(), ..Meta::default() };
        let spec = RequestAuthentication { jwt_rules: rules, ..RequestAuthentication::default() };
        Config { meta: meta.into(), spec: Hashed::from_message(spec) }
    }

    #[test]
    fn only_rules_without_inline_keys_request_some() {
        let rule = |issuer: &str, uri: &str, jwks: &str| JwtRule {
            issuer: issuer.into(),
            jwks_uri: uri.into(),
            jwks: jwks.into(),
            ..JwtRule::default()
        };
        let slow = JwtRule {
            timeout: Some(prost_types::Duration { seconds: 9, nanos: 0 }),
            ..rule("b", "https://b.example/keys", "")
        };
        let policies = [
            policy("one", vec![rule("a", "", "{}"), rule("b", "https://b.example/keys", ""), rule("", "", "")]),
            policy("two", vec![slow, rule("https://c.example", "", "")]),
        ];
        let wanted = FetchRequests::of(&policies, CredentialRefs::default());
        let keys: Vec<String> = wanted.keys.keys().map(KeySource::to_string).collect();
        assert_eq!(keys, ["https://b.example/keys", "issuer https://c.example"]);
        let shared = &wanted.keys[&KeySource::Uri("https://b.example/keys".into())];
        assert_eq!((shared.timeout, shared.by.len()), (Duration::from_secs(9), 2));
    }
}
