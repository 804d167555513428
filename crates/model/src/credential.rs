//! Reads certificates and keys from the data of a Secret or ConfigMap. The error messages are those of upstream; they
//! appear in the status of gateways.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::change::{CaCertificates, Credential, KeyPair, SecretBytes};
use crate::names::Str;

/// Data keys of a certificate and its private key: of generic Secrets, then of TLS Secrets.
const PAIRS: [(&str, &str); 2] = [("cert", "key"), ("tls.crt", "tls.key")];
const OCSP_STAPLE: &str = "tls.ocsp-staple";
const CA_KEYS: [&str; 2] = ["cacert", "ca.crt"];
/// The data key of the revocation list for each of `CA_KEYS`.
const CRL_KEYS: [&str; 2] = ["crl", "ca.crl"];
/// Maximum number of data keys in a message.
const MOST_NAMED: usize = 3;

/// Why a Secret or ConfigMap has no usable certificate.
#[derive(Debug, thiserror::Error)]
enum CredentialError {
    #[error("the certificate is malformed: {0}")]
    Malformed(#[from] PemError),
    #[error("found keys {0:?} and {1:?}, but they were empty")]
    EmptyPair(&'static str, &'static str),
    #[error("found secret, but didn't have expected keys (cert and key) or (tls.crt and tls.key); found: {0}")]
    NoPair(String),
    #[error("found key {0:?}, but it was empty")]
    EmptyCa(&'static str),
    #[error("found secret, but didn't have expected keys cacert or ca.crt; found: {0}")]
    NoCa(String),
}

/// The errors of Go's `tls.X509KeyPair`, with its messages.
#[derive(Debug, thiserror::Error)]
enum PemError {
    #[error("x509: malformed certificate")]
    MalformedCertificate,
    #[error("tls: failed to find any PEM data in certificate input")]
    NoCertificateData,
    #[error(
        "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may \
         have been switched"
    )]
    Switched,
    #[error(
        "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following \
         types: [{0}]"
    )]
    NoCertificate(String),
    #[error("tls: failed to parse private key")]
    MalformedKey,
    #[error("tls: failed to find any PEM data in key input")]
    NoKeyData,
    #[error("tls: found a certificate rather than a key in the PEM for the private key")]
    CertificateAsKey,
    #[error(
        "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of the \
         following types: [{0}]"
    )]
    NoKey(String),
}

/// Decoded data by key.
type CredentialEntries<'a> = BTreeMap<&'a str, &'a [u8]>;

impl Credential {
    pub fn of<'a>(entries: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Credential {
        let entries: CredentialEntries<'_> = entries.into_iter().collect();
        let ca = ca_certificates(&entries);
        let pair = key_pair(&entries);
        let (readable, ca_bundle_error) = match &ca {
            Ok(found) if has_certificate(found.certificates.bytes()) => (Some(found.clone()), None),
            Ok(_) => (None, Some("the bundle is malformed".into())),
            Err(_) => (None, None),
        };
        Credential {
            entries: entries.iter().filter(|(_, v)| !v.is_empty()).map(|(name, _)| Str::from(*name)).collect(),
            key_pair_error: pair.as_ref().err().map(|error| error.to_string().into()),
            ca_bundle_error,
            ca_error: ca.err().map(|error| error.to_string().into()),
            key_pair: pair.ok(),
            ca: readable,
        }
    }

    /// Drops certificates and keys. The errors remain, so it is still known what the Secret can be used for.
    pub fn without_content(self) -> Credential {
        Credential { key_pair: None, ca: None, ..self }
    }

    /// Whether usable certificates or keys were dropped.
    pub fn lacks_content(&self) -> bool {
        let lacks_pair = self.key_pair.is_none() && self.key_pair_error.is_none();
        let lacks_ca = self.ca.is_none() && self.ca_error.is_none() && self.ca_bundle_error.is_none();
        lacks_pair || lacks_ca
    }

    /// Whether certificates or keys are present.
    pub fn has_content(&self) -> bool {
        self.key_pair.is_some() || self.ca.is_some()
    }
}

fn value(entries: &CredentialEntries<'_>, name: &str) -> Option<SecretBytes> {
    entries.get(name).filter(|value| !value.is_empty()).map(|value| SecretBytes::from(*value))
}

/// The certificate and key, or why there are none.
fn key_pair(entries: &CredentialEntries<'_>) -> Result<KeyPair, CredentialError> {
    for (certificate, key) in PAIRS {
        if let (Some(chain), Some(secret)) = (value(entries, certificate), value(entries, key)) {
            check(chain.bytes(), secret.bytes())?;
            let ocsp_staple = if key == "tls.key" { value(entries, OCSP_STAPLE) } else { None };
            return Ok(KeyPair { certificate: chain, key: secret, ocsp_staple });
        }
    }
    for (certificate, key) in PAIRS {
        if entries.contains_key(certificate) && entries.contains_key(key) {
            return Err(CredentialError::EmptyPair(certificate, key));
        }
    }
    Err(CredentialError::NoPair(names(entries)))
}

/// The CA certificates, or why there are none.
fn ca_certificates(entries: &CredentialEntries<'_>) -> Result<CaCertificates, CredentialError> {
    for (name, crl) in CA_KEYS.into_iter().zip(CRL_KEYS) {
        if let Some(certificates) = value(entries, name) {
            return Ok(CaCertificates { certificates, crl: value(entries, crl) });
        }
    }
    if let Some(name) = CA_KEYS.into_iter().find(|name| entries.contains_key(name)) {
        return Err(CredentialError::EmptyCa(name));
    }
    Err(CredentialError::NoCa(names(entries)))
}

fn names(entries: &CredentialEntries<'_>) -> String {
    let names: Vec<&str> = entries.keys().copied().collect();
    if names.len() < MOST_NAMED {
        return names.join(", ");
    }
    format!("{}, and {} more...", names[..MOST_NAMED].join(", "), names.len() - MOST_NAMED)
}

struct PemBlock {
    label: String,
    content: Vec<u8>,
}

/// Checks that a certificate and a key can be parsed.
fn check(certificate: &[u8], key: &[u8]) -> Result<(), PemError> {
    let blocks = blocks(certificate);
    let labels: Vec<&str> = blocks.iter().map(|block| block.label.as_str()).collect();
    match blocks.iter().find(|block| block.label == "CERTIFICATE") {
        Some(block) if is_sequence(&block.content) => {}
        Some(_) => return Err(PemError::MalformedCertificate),
        None if labels.is_empty() => return Err(PemError::NoCertificateData),
        None if labels.len() == 1 && labels[0].ends_with("PRIVATE KEY") => {
            return Err(PemError::Switched);
        }
        None => return Err(PemError::NoCertificate(labels.join(" "))),
    }
    check_key(key)
}

fn check_key(key: &[u8]) -> Result<(), PemError> {
    let blocks = blocks(key);
    let labels: Vec<&str> = blocks.iter().map(|block| block.label.as_str()).collect();
    let is_key = |block: &&PemBlock| block.label == "PRIVATE KEY" || block.label.ends_with(" PRIVATE KEY");
    match blocks.iter().find(is_key) {
        Some(block) if is_sequence(&block.content) => Ok(()),
        Some(_) => Err(PemError::MalformedKey),
        None if labels.is_empty() => Err(PemError::NoKeyData),
        None if labels == ["CERTIFICATE"] => Err(PemError::CertificateAsKey),
        None => Err(PemError::NoKey(labels.join(" "))),
    }
}

fn has_certificate(text: &[u8]) -> bool {
    blocks(text).iter().any(|block| block.label == "CERTIFICATE" && is_sequence(&block.content))
}

/// The well-formed PEM blocks of a text.
fn blocks(text: &[u8]) -> Vec<PemBlock> {
    let text = String::from_utf8_lossy(text);
    let mut found = Vec::new();
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        let Some(label) = line.strip_prefix("-----BEGIN ").and_then(|l| l.strip_suffix("-----")) else { continue };
        let end = format!("-----END {label}-----");
        let body: String = lines.by_ref().take_while(|line| *line != end).filter(|line| !line.contains(':')).collect();
        if let Ok(content) = STANDARD.decode(body) {
            found.push(PemBlock { label: label.to_owned(), content });
        }
    }
    found
}

/// Whether the bytes are one DER sequence, as every certificate and key is.
fn is_sequence(der: &[u8]) -> bool {
    let [0x30, first, rest @ ..] = der else { return false };
    if *first < 0x80 {
        return rest.len() == usize::from(*first);
    }
    let size = usize::from(first & 0x7F);
    if size == 0 || size > 4 || rest.len() < size {
        return false;
    }
    let length = rest[..size].iter().fold(0usize, |length, byte| (length << 8) | usize::from(*byte));
    rest.len() - size == length
}

#[cfg(test)]
mod tests {
    use super::Credential;

    /// A PEM block with the smallest valid DER sequence.
    fn pem(label: &str) -> String {
        format!("-----BEGIN {label}-----\nMAMCAQE=\n-----END {label}-----\n")
    }

    fn fault(entries: &[(&str, &str)]) -> Option<String> {
        Credential::of(entries.iter().map(|(k, v)| (*k, v.as_bytes()))).key_pair_error.map(|why| why.to_string())
    }

    #[test]
    fn certificate_and_key_are_accepted() {
        let (certificate, key) = (pem("CERTIFICATE"), pem("EC PRIVATE KEY"));
        assert_eq!(fault(&[("tls.crt", &certificate), ("tls.key", &key)]), None);
        assert_eq!(fault(&[("cert", &certificate), ("key", &key)]), None);
    }

    #[test]
    fn errors_name_the_missing_or_malformed_key() {
        let (certificate, key) = (pem("CERTIFICATE"), pem("PRIVATE KEY"));
        let cases = [
            (vec![("tls.crt", ""), ("tls.key", "")], "found keys \"tls.crt\" and \"tls.key\", but they were empty"),
            (
                vec![("a", "1"), ("b", "2")],
                "found secret, but didn't have expected keys (cert and key) or (tls.crt and tls.key); found: a, b",
            ),
            (
                vec![("tls.crt", "no"), ("tls.key", &key)],
                "the certificate is malformed: tls: failed to find any PEM data in certificate input",
            ),
            (
                vec![("tls.crt", &certificate), ("tls.key", &certificate)],
                "the certificate is malformed: tls: found a certificate rather than a key in the PEM for the private key",
            ),
        ];
        for (entries, expected) in cases {
            assert_eq!(fault(&entries).as_deref(), Some(expected));
        }
    }

    #[test]
    fn private_key_is_kept_but_not_printed() {
        let (certificate, key) = (pem("CERTIFICATE"), pem("PRIVATE KEY"));
        let entries = [("tls.crt", certificate.as_bytes()), ("tls.key", key.as_bytes()), ("password", b"hunter2")];
        let credential = Credential::of(entries);
        assert_eq!(credential.key_pair.as_ref().map(|pair| pair.key.bytes()), Some(key.as_bytes()));
        let shown = format!("{credential:?}");
        assert!(!shown.contains("PRIVATE") && !shown.contains("hunter2"), "{shown}");
        let unusable = Credential::of([("tls.crt", &b"x"[..]), ("tls.key", &b"y"[..])]);
        assert_eq!(unusable.key_pair, None);
    }

    #[test]
    fn ca_needs_only_a_certificate() {
        let certificate = pem("CERTIFICATE");
        let good = Credential::of([("ca.crt", certificate.as_bytes())]);
        assert_eq!((good.ca_error, good.ca_bundle_error), (None, None));
        let bad = Credential::of([("ca.crt", &b"x"[..])]);
        assert_eq!((bad.ca_error, bad.ca_bundle_error.as_deref()), (None, Some("the bundle is malformed")));
        let none = Credential::of([]);
        assert!(none.ca_error.is_some_and(|why| why.ends_with("expected keys cacert or ca.crt; found: ")));
    }
}
