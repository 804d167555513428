//! A certificate authority: a signing certificate with its key, the chain to its root, and the roots of the mesh.

use std::time::Duration;

use thiserror::Error;

use crate::bundle::RootBundle;
use crate::certificate::{Certificate, CertificateError};
use crate::csr::CertificateRequest;
use crate::issue::{self, LeafContent, SubjectName, Validity};
use crate::key::{KeyError, KeyFormat, KeyKind, PrivateKey, SecretText};

/// Leaves are valid from this long before they are issued: clocks differ.
pub const BACKDATED: Duration = Duration::from_secs(120);
/// Certificates between a signing certificate and its root.
const MAX_PATH: usize = 8;

/// Limits on the lifetime of leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafLifetimes {
    /// Lifetime if none is requested.
    pub default: Duration,
    /// Requests above this are refused.
    pub max: Duration,
}

impl LeafLifetimes {
    /// The lifetime for a request, both in seconds; zero and less mean the default.
    pub fn requested(self, requested: i64) -> Result<i64, IssueError> {
        let max = self.max.as_secs();
        match u64::try_from(requested) {
            Ok(seconds) if seconds > max => Err(IssueError::Lifetime { requested, max }),
            Ok(1..) => Ok(requested),
            _ => Ok(seconds(self.default)),
        }
    }
}

impl Default for LeafLifetimes {
    fn default() -> LeafLifetimes {
        LeafLifetimes { default: Duration::from_secs(24 * 3600), max: Duration::from_secs(90 * 24 * 3600) }
    }
}

/// The PEM texts of a CA.
#[derive(Clone, Copy)]
pub struct AuthorityTexts<'a> {
    /// The signing certificate.
    pub certificate: &'a str,
    pub key: &'a str,
    /// Intermediates, normally with the signing certificate first; may be empty.
    pub chain: &'a str,
    pub roots: &'a str,
}

/// Why certificates and key are not a usable CA.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum AuthorityError {
    #[error("could not read the signing certificate: {0}")]
    Certificate(#[source] CertificateError),
    #[error("could not read the certificate chain: {0}")]
    Chain(#[source] CertificateError),
    #[error("could not read the root certificates: {0}")]
    Roots(#[source] CertificateError),
    #[error("could not read the signing key: {0}")]
    Key(#[from] KeyError),
    #[error("the signing certificate is not a CA certificate")]
    NotACa,
    #[error("the signing key does not match the signing certificate")]
    KeyMismatch,
    #[error("the signing certificate is not valid now: it is valid from {0} to {1}, in seconds since 1970")]
    NotValidNow(i64, i64),
    #[error("the signing certificate does not verify: the chain does not lead to a root certificate")]
    NoPathToRoot,
}

/// Why a certificate is not issued.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum IssueError {
    #[error("requested TTL {requested}s is greater than the max allowed TTL {max}s")]
    Lifetime { requested: i64, max: u64 },
    #[error("the signing certificate has expired")]
    IssuerExpired,
    #[error("a certificate needs at least one name")]
    NoNames,
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("the issued certificate cannot be parsed")]
    Malformed,
}

/// A CA that can sign.
#[derive(Debug)]
pub struct SigningAuthority {
    key: PrivateKey,
    certificate: Certificate,
    /// Sent to workloads after their leaf.
    chain: Vec<Certificate>,
    roots: RootBundle,
    /// The earliest end of a certificate on the path to the root.
    path_end: i64,
}

/// An issued certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCertificate {
    pub certificate: Certificate,
    /// PEM texts: the leaf, each intermediate, and as the last element all roots.
    pub chain: Vec<String>,
}

impl SigningAuthority {
    /// A new self-signed root.
    pub fn new_root(
        organization: &str,
        key: PrivateKey,
        lifetime: Duration,
        now: i64,
        serial: &[u8; 16],
    ) -> Result<SigningAuthority, IssueError> {
        let not_after = now.saturating_add(seconds(lifetime)).min(LAST_SECOND);
        // Backdated like leaves, unlike upstream: an Envoy whose clock is slow refuses a root of the future.
        let not_before = now.saturating_sub(seconds(BACKDATED));
        let encoded = issue::root(&key, organization, Validity { not_before, not_after }, serial)?;
        let certificate = Certificate::from_der(&encoded).ok_or(IssueError::Malformed)?;
        let roots = RootBundle::new([certificate.clone()]);
        Ok(SigningAuthority { key, certificate, chain: Vec::new(), roots, path_end: not_after })
    }

    /// Reads and verifies a CA.
    pub fn from_texts(texts: AuthorityTexts<'_>, now: i64) -> Result<SigningAuthority, AuthorityError> {
        let read = SigningAuthority::from_texts_at_any_time(texts)?;
        let (not_before, not_after) = (read.certificate.not_before, read.path_end);
        // A root made by another replica a moment ago by a clock that is ahead of this one.
        let is_begun = now >= not_before.saturating_sub(seconds(BACKDATED));
        if !is_begun || now > not_after {
            return Err(AuthorityError::NotValidNow(not_before, not_after));
        }
        Ok(read)
    }

    /// Reads a CA whose certificates may have expired.
    pub fn from_texts_at_any_time(texts: AuthorityTexts<'_>) -> Result<SigningAuthority, AuthorityError> {
        let certificate = Certificate::all_from_pem(texts.certificate).map_err(AuthorityError::Certificate)?.remove(0);
        let key = PrivateKey::from_pem(texts.key)?;
        let mut chain = match texts.chain.trim().is_empty() {
            true => Vec::new(),
            false => Certificate::all_from_pem(texts.chain).map_err(AuthorityError::Chain)?,
        };
        let roots = RootBundle::from_pem(texts.roots).map_err(AuthorityError::Roots)?;
        if !certificate.is_ca {
            return Err(AuthorityError::NotACa);
        }
        if key.public_key_info() != certificate.public_key_info {
            return Err(AuthorityError::KeyMismatch);
        }
        let path_end = path_end(&certificate, &chain, &roots).ok_or(AuthorityError::NoPathToRoot)?;
        if !roots.contains(&certificate) && !chain.contains(&certificate) {
            chain.insert(0, certificate.clone());
        }
        Ok(SigningAuthority { key, certificate, chain, roots, path_end })
    }

    /// The same CA with other roots, which contain its own.
    pub fn with_roots(&self, roots: RootBundle) -> Result<SigningAuthority, AuthorityError> {
        let key = PrivateKey::from_pem(&self.key_pem()?)?;
        let (certificate, chain) = (self.certificate.clone(), self.chain.clone());
        let path_end = path_end(&certificate, &chain, &roots).ok_or(AuthorityError::NoPathToRoot)?;
        Ok(SigningAuthority { key, certificate, chain, roots, path_end })
    }

    /// The signing certificate.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    pub fn roots(&self) -> &RootBundle {
        &self.roots
    }

    /// Intermediates that are sent after a leaf.
    pub fn chain(&self) -> &[Certificate] {
        &self.chain
    }

    /// The signing key as PEM, for storing it.
    pub fn key_pem(&self) -> Result<SecretText, KeyError> {
        self.key.to_pem(KeyFormat::Traditional)
    }

    /// The kind of key of this CA.
    pub fn key_kind(&self) -> KeyKind {
        self.key.similar_kind()
    }

    /// Issues a leaf for a verified request. `requested` is in seconds; zero and less mean the default.
    pub fn issue(
        &self,
        request: &CertificateRequest,
        names: &[SubjectName],
        requested: i64,
        lifetimes: LeafLifetimes,
        now: i64,
        serial: [u8; 16],
    ) -> Result<IssuedCertificate, IssueError> {
        let lifetime = lifetimes.requested(requested)?;
        let (key_info, has_common_name) = (&request.public_key_info, request.has_common_name);
        self.sign(key_info, has_common_name, names, lifetime, now, serial)
    }

    /// Issues a certificate with a new key, for a server of this process.
    pub fn issue_with_key(
        &self,
        names: &[SubjectName],
        lifetime: Duration,
        now: i64,
        serial: [u8; 16],
    ) -> Result<(IssuedCertificate, PrivateKey), IssueError> {
        let key = PrivateKey::generate(self.key_kind())?;
        let issued = self.sign(key.public_key_info(), false, names, seconds(lifetime), now, serial)?;
        Ok((issued, key))
    }

    fn sign(
        &self,
        public_key_info: &[u8],
        has_common_name: bool,
        names: &[SubjectName],
        lifetime: i64,
        now: i64,
        serial: [u8; 16],
    ) -> Result<IssuedCertificate, IssueError> {
        if names.is_empty() {
            return Err(IssueError::NoNames);
        }
        if now > self.path_end {
            return Err(IssueError::IssuerExpired);
        }
        let not_before = now.saturating_sub(seconds(BACKDATED));
        let not_after = now.saturating_add(lifetime).min(self.path_end);
        let validity = Validity { not_before, not_after };
        let content = LeafContent { public_key_info, names, has_common_name, validity, serial };
        let encoded = issue::leaf(&self.certificate, &self.key, &content)?;
        let certificate = Certificate::from_der(&encoded).ok_or(IssueError::Malformed)?;
        let leaf = std::iter::once(certificate.to_pem());
        let chain = leaf.chain(self.chain.iter().map(Certificate::to_pem)).chain([self.roots.to_pem()]).collect();
        Ok(IssuedCertificate { certificate, chain })
    }
}

/// 31 December 9999: the last second that a certificate can name.
const LAST_SECOND: i64 = 253_402_300_799;

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

/// Whether a certificate leads to a root, directly or through a chain.
pub fn leads_to_root(certificate: &Certificate, chain: &[Certificate], roots: &RootBundle) -> bool {
    path_end(certificate, chain, roots).is_some()
}

/// The earliest end of a certificate on the path from the signing certificate to a root; `None` if there is no path.
fn path_end(signing: &Certificate, chain: &[Certificate], roots: &RootBundle) -> Option<i64> {
    let mut end = signing.not_after;
    let mut at = signing;
    for _ in 0..MAX_PATH {
        if roots.contains(at) {
            return Some(end);
        }
        if let Some(root) = roots.roots().iter().find(|root| at.is_signed_by(root)) {
            return Some(end.min(root.not_after));
        }
        at = chain.iter().find(|next| *next != at && at.is_signed_by(next))?;
        end = end.min(at.not_after);
    }
    None
}
