//! Certificate signing requests: made by agents, checked by the CA. Of a request the CA uses only the public key and
//! whether there is a common name; names and extensions are ignored.

use thiserror::Error;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use crate::certificate;
use crate::der::{self, oid};
use crate::issue::{SubjectName, alternative_names};
use crate::key::{KeyError, PrivateKey};
use crate::pem;
use crate::signature::{self, SignatureError};

/// Maximum size of a request in PEM. One with an RSA key of 8192 bits needs 3 KiB.
pub const MAX_BYTES: usize = 64 * 1024;

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum CsrError {
    #[error("the CSR has {0} bytes, at most {MAX_BYTES} are accepted")]
    TooLarge(usize),
    #[error("the CSR is not PEM: {0}")]
    Pem(#[from] pem::PemError),
    #[error("the PEM block is a {0:?} and not a CERTIFICATE REQUEST")]
    Label(String),
    #[error("the CSR cannot be parsed")]
    Malformed,
    #[error("could not accept the CSR: {0}")]
    Signature(#[from] SignatureError),
}

/// A request whose signature was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateRequest {
    /// DER of the public key.
    pub(crate) public_key_info: Vec<u8>,
    /// Whether the subject has a common name.
    pub(crate) has_common_name: bool,
}

impl CertificateRequest {
    /// Parses and verifies the first PEM block of a text.
    pub fn from_pem(text: &str) -> Result<CertificateRequest, CsrError> {
        if text.len() > MAX_BYTES {
            return Err(CsrError::TooLarge(text.len()));
        }
        let block = pem::first_block(text)?;
        if !matches!(&*block.label, "CERTIFICATE REQUEST" | "NEW CERTIFICATE REQUEST") {
            return Err(CsrError::Label(block.label));
        }
        let (rest, parsed) = X509CertificationRequest::from_der(&block.content).map_err(|_| CsrError::Malformed)?;
        if !rest.is_empty() {
            return Err(CsrError::Malformed);
        }
        let info = &parsed.certification_request_info;
        let signed = &parsed.signature_value.data;
        signature::verify(&info.subject_pki, &parsed.signature_algorithm, info.raw, signed)?;
        Ok(CertificateRequest {
            public_key_info: info.subject_pki.raw.to_vec(),
            has_common_name: info.subject.iter_common_name().next().is_some(),
        })
    }
}

/// A request in PEM: an empty organisation and the names, as upstream's agents send it.
pub fn request(key: &PrivateKey, names: &[SubjectName]) -> Result<String, KeyError> {
    let extension = der::extension(oid::SUBJECT_ALT_NAME, true, &alternative_names(names));
    let extensions = der::set(&der::sequence(&[&extension]));
    let attribute = der::sequence(&[&der::object_id(oid::EXTENSION_REQUEST), &extensions]);
    let info = der::sequence(&[
        &der::integer(&[0]),
        &certificate::name(Some((oid::ORGANIZATION, ""))),
        key.public_key_info(),
        &der::context(0, &attribute),
    ]);
    Ok(pem::encode("CERTIFICATE REQUEST", &key.signed(&info)?))
}
