//! Builds Envoy's Secret messages from the workload's certificates and from files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use api::Resource;
use api::envoy::config::core::v3::DataSource;
use api::envoy::config::core::v3::data_source::Specifier;
use api::envoy::extensions::transport_sockets::tls::v3::secret::Type;
use api::envoy::extensions::transport_sockets::tls::v3::{CertificateValidationContext, Secret, TlsCertificate};
use bytes::Bytes;
use net::tls;
use rustls::InconsistentKeys;
use rustls::sign::CertifiedKey;

use super::names::SecretSource;
use crate::certificates::CurrentMaterial;

/// Last good file contents by path.
pub(super) type FileContents = BTreeMap<PathBuf, Bytes>;

/// False if the key does not match the certificate. Content that cannot be parsed is left to Envoy.
pub(super) fn belong_together(texts: &[&Bytes]) -> bool {
    let [chain, key] = texts else { return true };
    let (Ok(chain), Ok(key)) = (tls::certificates(chain), tls::private_key(key)) else { return true };
    let Ok(key) = tls::provider().key_provider.load_private_key(key) else { return true };
    let checked = CertifiedKey::new(chain, key).keys_match();
    !matches!(checked, Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)))
}

pub(super) fn is_pem(text: &[u8]) -> bool {
    text.windows(11).any(|at| at == b"-----BEGIN ")
}

/// The Secret resource of this name; `None` if its content is not available.
pub(super) fn resource(
    name: &Arc<str>,
    secret: &SecretSource,
    current: &CurrentMaterial,
    files: &FileContents,
) -> Option<Resource> {
    let file = |path: &PathBuf| files.get(path);
    let kind = match secret {
        SecretSource::Workload => {
            let material = current.as_ref()?;
            pair(&material.chain, &material.key)?
        }
        SecretSource::Root => {
            let material = current.as_ref()?;
            trusted(&material.root, &material.revoked)?
        }
        SecretSource::Pair { chain, key } => pair(file(chain)?, file(key)?)?,
        SecretSource::RootFile(path) => trusted(&without_keys(file(path)?), &Bytes::new())?,
    };
    Some(Resource::new(Arc::clone(name), &Secret { name: name.to_string(), r#type: Some(kind) }))
}

/// Removes private keys: verification never needs them, and a CA path may point to a key file.
fn without_keys(text: &Bytes) -> Bytes {
    let is_key_line =
        |line: &[u8], word: &[u8]| line.starts_with(word) && line.windows(11).any(|at| at == b"PRIVATE KEY");
    let mut remaining = Vec::with_capacity(text.len());
    let mut inside = false;
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        inside |= is_key_line(line.trim_ascii_start(), b"-----BEGIN ");
        if !inside {
            remaining.extend_from_slice(line);
        }
        inside &= !is_key_line(line.trim_ascii_start(), b"-----END ");
    }
    // Unchanged if there are no keys; empty if there are only keys.
    if remaining.len() == text.len() {
        text.clone()
    } else if is_pem(&remaining) {
        remaining.into()
    } else {
        Bytes::new()
    }
}

fn pair(chain: &Bytes, key: &Bytes) -> Option<Type> {
    let certificate = TlsCertificate {
        certificate_chain: Some(source(chain)?),
        private_key: Some(source(key)?),
        ..TlsCertificate::default()
    };
    Some(Type::TlsCertificate(certificate))
}

fn trusted(roots: &Bytes, revoked: &Bytes) -> Option<Type> {
    let context = CertificateValidationContext {
        trusted_ca: Some(source(roots)?),
        crl: source(revoked),
        // Otherwise Envoy refuses every certificate with an issuer on its path that has no list, such as the root.
        only_verify_leaf_cert_crl: !revoked.is_empty(),
        ..CertificateValidationContext::default()
    };
    Some(Type::ValidationContext(context))
}

fn source(text: &Bytes) -> Option<DataSource> {
    (!text.is_empty())
        .then(|| DataSource { specifier: Some(Specifier::InlineBytes(text.to_vec())), ..Default::default() })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::without_keys;

    #[test]
    fn hole_10_ca_file_never_exposes_a_key() {
        let certificate = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
        let key = |kind: &str| format!("-----BEGIN {kind}PRIVATE KEY-----\nMIIC\n-----END {kind}PRIVATE KEY-----\n");
        let check = |text: String, expected: &str| assert_eq!(without_keys(&Bytes::from(text)), expected);
        check(format!("# own\n{certificate}{certificate}"), &format!("# own\n{certificate}{certificate}"));
        check(format!("{certificate}{}{certificate}", key("EC ")), &format!("{certificate}{certificate}"));
        check(format!("  {}{certificate}", key("ENCRYPTED ")), certificate);
        for kind in ["", "RSA ", "OPENSSH "] {
            check(key(kind), "");
        }
        // An unterminated key hides the rest of the file.
        check("-----BEGIN PRIVATE KEY-----\nMIIC\n".to_owned() + certificate, "");
    }
}
