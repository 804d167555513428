//! Certificate signing requests: made by agents, checked by the CA. Of a request the CA uses only the public key and
//! whether there is a common name; names and extensions are ignored.

use thiserror::Error;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::oid_registry::OID_X509_ORGANIZATION_NAME;
use x509_parser::prelude::FromDer;
use x509_parser::x509::AttributeTypeAndValue;

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
    #[error("the CSR must have one name, an identity of the caller, and no other content: {0}")]
    Content(&'static str),
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

impl CertificateRequest {
    /// DER of the public key.
    pub fn public_key(&self) -> &[u8] {
        &self.public_key_info
    }
}

/// Checks a request for a signer that copies its content: it may have one of these names and nothing else.
pub fn check_content(text: &str, names: &[String]) -> Result<(), CsrError> {
    let block = pem::first_block(text)?;
    let (_, parsed) = X509CertificationRequest::from_der(&block.content).map_err(|_| CsrError::Malformed)?;
    let info = &parsed.certification_request_info;
    let is_empty = |part: &AttributeTypeAndValue<'_>| {
        *part.attr_type() == OID_X509_ORGANIZATION_NAME && part.as_str().is_ok_and(str::is_empty)
    };
    if !info.subject.iter_attributes().all(is_empty) {
        return Err(CsrError::Content("the subject is not empty"));
    }
    if info.iter_attributes().count() > 1 {
        return Err(CsrError::Content("it has several attributes"));
    }
    let mut found = 0;
    for extension in parsed.requested_extensions().into_iter().flatten() {
        let ParsedExtension::SubjectAlternativeName(extension) = extension else {
            return Err(CsrError::Content("it has another extension"));
        };
        for name in &extension.general_names {
            match name {
                GeneralName::URI(uri) if names.iter().any(|name| name == uri) => found += 1,
                _ => return Err(CsrError::Content("it has another name")),
            }
        }
    }
    if found == 1 { Ok(()) } else { Err(CsrError::Content("it has no name, or several")) }
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
