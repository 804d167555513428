//! SPIFFE identities of workloads: `spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT`.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The identity of a workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpiffeId {
    pub trust_domain: String,
    pub namespace: String,
    pub service_account: String,
}

/// Why a text is no identity.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum IdentityError {
    #[error("{0:?} is not of the form spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT")]
    NotSpiffe(String),
    #[error("{0:?} is not of the form system:serviceaccount:NAMESPACE:SERVICE-ACCOUNT")]
    NotServiceAccount(String),
}

/// Longest part of an identity: a DNS subdomain.
const MAX_PART: usize = 253;

impl SpiffeId {
    /// `None` if a part is empty, too long, or could be read as more than one part. An `@` in the trust domain becomes a
    /// dot, as in upstream.
    pub fn new(trust_domain: &str, namespace: &str, service_account: &str) -> Option<SpiffeId> {
        let trust_domain = trust_domain.replace('@', ".");
        let is_valid = is_part(&trust_domain) && is_part(namespace) && is_part(service_account);
        is_valid.then(|| SpiffeId {
            trust_domain,
            namespace: namespace.to_owned(),
            service_account: service_account.to_owned(),
        })
    }

    /// The identity of a Kubernetes user `system:serviceaccount:NAMESPACE:SERVICE-ACCOUNT`.
    pub fn of_service_account(user: &str, trust_domain: &str) -> Result<SpiffeId, IdentityError> {
        let parts: Vec<&str> = user.split(':').collect();
        let found = match parts[..] {
            ["system", "serviceaccount", namespace, account] => SpiffeId::new(trust_domain, namespace, account),
            _ => None,
        };
        found.ok_or_else(|| IdentityError::NotServiceAccount(excerpt(user)))
    }
}

fn is_part(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !text.is_empty() && text.len() <= MAX_PART && text.chars().all(is_plain)
}

/// The start of a foreign text, for messages.
pub(crate) fn excerpt(text: &str) -> String {
    text.chars().take(100).collect()
}

impl FromStr for SpiffeId {
    type Err = IdentityError;

    fn from_str(uri: &str) -> Result<SpiffeId, IdentityError> {
        let parts: Vec<&str> = uri.strip_prefix("spiffe://").unwrap_or_default().split('/').collect();
        let found = match parts[..] {
            [domain, "ns", namespace, "sa", account] if !domain.contains('@') => {
                SpiffeId::new(domain, namespace, account)
            }
            _ => None,
        };
        found.ok_or_else(|| IdentityError::NotSpiffe(excerpt(uri)))
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spiffe://{}/ns/{}/sa/{}", self.trust_domain, self.namespace, self.service_account)
    }
}

#[cfg(test)]
mod tests {
    use super::SpiffeId;

    #[test]
    fn only_whole_identities_are_parsed() {
        let id: SpiffeId = "spiffe://cluster.local/ns/shop/sa/front".parse().unwrap();
        assert_eq!(id, SpiffeId::new("cluster.local", "shop", "front").unwrap());
        for bad in [
            "",
            "spiffe://",
            "spiffe://a/ns/b",
            "https://a/ns/b/sa/c",
            "spiffe://a/x/b/sa/c",
            "spiffe://a/ns/b/sa/c/d",
            "spiffe://a/ns//sa/c",
            "spiffe://a/ns/b/sa/",
            "spiffe:///ns/b/sa/c",
            "spiffe://a/ns/b/sa/c\0",
            "spiffe://a/ns/b%2f/sa/c",
            "SPIFFE://a/ns/b/sa/c",
        ] {
            assert!(bad.parse::<SpiffeId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn odd_users_have_no_identity() {
        let of = |user: &str| SpiffeId::of_service_account(user, "td").ok().map(|id| id.to_string());
        assert_eq!(of("system:serviceaccount:shop:cart").as_deref(), Some("spiffe://td/ns/shop/sa/cart"));
        let long = format!("system:serviceaccount:a:{}", "b".repeat(300));
        for bad in [
            "",
            "admin",
            "system:serviceaccount:shop",
            "system:serviceaccount:a:b:c",
            "system:node:a:b",
            "system:serviceaccount::b",
            "system:serviceaccount:a/b:c",
            &long,
        ] {
            assert_eq!(of(bad), None, "{bad}");
        }
        assert_eq!(SpiffeId::new("me@corp", "a", "b").unwrap().trust_domain, "me.corp");
    }
}
