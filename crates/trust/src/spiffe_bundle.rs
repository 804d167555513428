//! Bundles of SPIFFE bundle endpoints: JSON key sets whose `x509-svid` keys are root certificates.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use thiserror::Error;

use crate::bundle::RootBundle;
use crate::certificate::Certificate;

/// Roots of one bundle.
const MAX_ROOTS: usize = 100;

/// Why a bundle cannot be used.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum SpiffeBundleError {
    #[error("the bundle is not JSON with a list of keys")]
    Malformed,
    #[error("key {0} has {1} certificates instead of one")]
    Certificates(usize, usize),
    #[error("the certificate of key {0} cannot be read")]
    Certificate(usize),
    #[error("the certificate of key {0} is not that of a CA")]
    NoCa(usize),
    #[error("the bundle has no root certificate")]
    Empty,
    #[error("the bundle has more than {MAX_ROOTS} root certificates")]
    TooMany,
}

/// The root certificates of a bundle. Keys for other uses are ignored.
pub fn roots(text: &str) -> Result<RootBundle, SpiffeBundleError> {
    let bundle: Value = serde_json::from_str(text).map_err(|_| SpiffeBundleError::Malformed)?;
    let keys = bundle.get("keys").and_then(Value::as_array).ok_or(SpiffeBundleError::Malformed)?;
    let is_root = |(_, key): &(usize, &Value)| key.get("use").is_some_and(|usage| usage == "x509-svid");
    let mut roots = Vec::new();
    for (index, key) in keys.iter().enumerate().filter(is_root) {
        if roots.len() == MAX_ROOTS {
            return Err(SpiffeBundleError::TooMany);
        }
        roots.push(root(index, key)?);
    }
    if roots.is_empty() { Err(SpiffeBundleError::Empty) } else { Ok(RootBundle::new(roots)) }
}

fn root(index: usize, key: &Value) -> Result<Certificate, SpiffeBundleError> {
    let certificates = key.get("x5c").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let [only] = certificates else { return Err(SpiffeBundleError::Certificates(index, certificates.len())) };
    let encoded = only.as_str().and_then(|text| BASE64_STANDARD.decode(text).ok());
    let certificate =
        encoded.and_then(|der| Certificate::from_der(&der)).ok_or(SpiffeBundleError::Certificate(index))?;
    if certificate.is_ca { Ok(certificate) } else { Err(SpiffeBundleError::NoCa(index)) }
}
