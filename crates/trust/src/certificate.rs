//! The fields of a certificate that the mesh uses, parsed once.

use std::fmt;

use thiserror::Error;
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509Certificate};

use crate::identity::{IdentityError, SpiffeId};
use crate::key::PrivateKey;
use crate::signature::{self, SignatureError};
use crate::{der, pem};

/// A parsed certificate.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    der: Vec<u8>,
    /// DER of the subject's name.
    pub(crate) subject: Vec<u8>,
    /// DER of the issuer's name.
    pub(crate) issuer: Vec<u8>,
    /// DER of the public key.
    pub(crate) public_key_info: Vec<u8>,
    pub(crate) subject_key_id: Option<Vec<u8>>,
    /// First and last second of its validity, since 1970.
    pub not_before: i64,
    pub not_after: i64,
    pub is_ca: bool,
    /// URI names.
    pub uris: Vec<String>,
    /// DNS names.
    pub dns_names: Vec<String>,
    /// The serial number in hexadecimal digits.
    pub serial: String,
}

/// Why a certificate cannot be used.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum CertificateError {
    #[error(transparent)]
    Pem(#[from] pem::PemError),
    #[error("there is no certificate in the PEM blocks")]
    NoCertificate,
    #[error("certificate {number} cannot be parsed")]
    Malformed { number: usize },
    #[error("the certificate has {0} URIs instead of one")]
    Uris(usize),
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

impl Certificate {
    pub fn from_der(der: &[u8]) -> Option<Certificate> {
        let (rest, parsed) = X509Certificate::from_der(der).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let key_id = parsed.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        });
        let names = match parsed.subject_alternative_name() {
            Ok(Some(names)) => names.value.general_names.as_slice(),
            Ok(None) => &[],
            Err(_) => return None,
        };
        let uris = names.iter().filter_map(|name| match name {
            GeneralName::URI(uri) => Some((*uri).to_owned()),
            _ => None,
        });
        let dns = names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        });
        Some(Certificate {
            der: der.to_vec(),
            subject: parsed.subject().as_raw().to_vec(),
            issuer: parsed.issuer().as_raw().to_vec(),
            public_key_info: parsed.public_key().raw.to_vec(),
            subject_key_id: key_id,
            not_before: parsed.validity().not_before.timestamp(),
            not_after: parsed.validity().not_after.timestamp(),
            is_ca: parsed.is_ca(),
            uris: uris.collect(),
            dns_names: dns.collect(),
            serial: parsed.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect(),
        })
    }

    /// All certificates of a PEM text; an error if there is none. Other blocks are ignored.
    pub fn all_from_pem(text: &str) -> Result<Vec<Certificate>, CertificateError> {
        let blocks = pem::blocks(text)?;
        let blocks = blocks.iter().filter(|block| block.label == "CERTIFICATE").enumerate();
        let read = |(index, block): (usize, &pem::PemBlock)| {
            Certificate::from_der(&block.content).ok_or(CertificateError::Malformed { number: index + 1 })
        };
        let found = blocks.map(read).collect::<Result<Vec<_>, _>>()?;
        if found.is_empty() { Err(CertificateError::NoCertificate) } else { Ok(found) }
    }

    pub fn der(&self) -> &[u8] {
        &self.der
    }

    pub fn to_pem(&self) -> String {
        pem::encode("CERTIFICATE", &self.der)
    }

    /// DER of its public key.
    pub fn public_key(&self) -> &[u8] {
        &self.public_key_info
    }

    /// The identity of a workload certificate: its only URI.
    pub fn identity(&self) -> Result<SpiffeId, CertificateError> {
        match &self.uris[..] {
            [uri] => Ok(uri.parse()?),
            other => Err(CertificateError::Uris(other.len())),
        }
    }

    /// True if its issuer is itself.
    pub fn is_self_issued(&self) -> bool {
        self.subject == self.issuer
    }

    /// Whether it is a certificate for this key.
    pub fn is_for_key(&self, key: &PrivateKey) -> bool {
        self.public_key_info == key.public_key_info()
    }

    pub fn is_valid_at(&self, now: i64) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }

    /// Whether `issuer` is a CA that signed this certificate.
    pub fn is_signed_by(&self, issuer: &Certificate) -> bool {
        issuer.is_ca && self.issuer == issuer.subject && self.verify_with(issuer).is_ok()
    }

    fn verify_with(&self, issuer: &Certificate) -> Result<(), SignatureError> {
        let own = X509Certificate::from_der(&self.der).map_err(|_| SignatureError::Mismatch)?.1;
        let other = X509Certificate::from_der(&issuer.der).map_err(|_| SignatureError::Key)?.1;
        let signed = &own.signature_value.data;
        signature::verify(other.public_key(), &own.signature_algorithm, own.tbs_certificate.as_ref(), signed)
    }

    /// The organisation of a self-signed root's subject.
    pub fn organization(&self) -> Option<String> {
        let (_, parsed) = X509Certificate::from_der(&self.der).ok()?;
        let name = parsed.subject().iter_organization().next()?.as_str().ok()?;
        Some(name.to_owned())
    }
}

/// Prints names and lifetime, not the whole certificate.
impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate")
            .field("serial", &self.serial)
            .field("uris", &self.uris)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

/// DER of a name with one attribute, or an empty name.
pub(crate) fn name(attribute: Option<(&[u8], &str)>) -> Vec<u8> {
    match attribute {
        None => der::sequence(&[]),
        Some((oid, text)) => der::sequence(&[&der::set(&der::sequence(&[&der::object_id(oid), &der::utf8(text)]))]),
    }
}
