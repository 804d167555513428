//! Issues certificates: self-signed roots, leaves of workloads and of servers.

use std::net::IpAddr;

use aws_lc_rs::digest;

use crate::certificate::{Certificate, name};
use crate::der::{self, oid};
use crate::identity::SpiffeId;
use crate::key::{KeyError, PrivateKey};

/// A subject alternative name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SubjectName {
    Uri(String),
    Dns(String),
    Ip(IpAddr),
}

impl SubjectName {
    /// The kind of name that a text is: an IP address, a SPIFFE URI, else a DNS name.
    pub fn of_text(text: &str) -> SubjectName {
        match text.parse() {
            Ok(ip) => SubjectName::Ip(ip),
            Err(_) if text.starts_with("spiffe://") => SubjectName::Uri(text.to_owned()),
            Err(_) => SubjectName::Dns(text.to_owned()),
        }
    }

    fn text(&self) -> String {
        match self {
            SubjectName::Uri(text) | SubjectName::Dns(text) => text.clone(),
            SubjectName::Ip(ip) => ip.to_string(),
        }
    }
}

impl From<&SpiffeId> for SubjectName {
    fn from(id: &SpiffeId) -> SubjectName {
        SubjectName::Uri(id.to_string())
    }
}

/// First and last second of a certificate's validity, since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub not_before: i64,
    pub not_after: i64,
}

/// Longest common name that X.509 allows.
const MAX_COMMON_NAME: usize = 64;

/// Content of a leaf certificate.
pub(crate) struct LeafContent<'a> {
    pub(crate) public_key_info: &'a [u8],
    pub(crate) names: &'a [SubjectName],
    /// Also put the first name into the common name.
    pub(crate) has_common_name: bool,
    pub(crate) validity: Validity,
    pub(crate) serial: [u8; 16],
}

/// DER of a leaf certificate signed by an issuer.
pub(crate) fn leaf(issuer: &Certificate, key: &PrivateKey, content: &LeafContent<'_>) -> Result<Vec<u8>, KeyError> {
    let first = content.names.first().map(SubjectName::text).filter(|text| text.len() <= MAX_COMMON_NAME);
    let common_name = first.filter(|_| content.has_common_name);
    let usages = [oid::SERVER_AUTH, oid::CLIENT_AUTH].map(der::object_id).concat();
    let authority = issuer.subject_key_id.as_ref().map(|id| {
        let value = der::sequence(&[&der::element(0x80, id)]);
        der::extension(oid::AUTHORITY_KEY_ID, false, &value)
    });
    let extensions = [
        // digitalSignature and keyEncipherment.
        der::extension(oid::KEY_USAGE, true, &der::bit_string(&[0b1010_0000], 5)),
        der::extension(oid::EXT_KEY_USAGE, false, &der::element(0x30, &usages)),
        der::extension(oid::BASIC_CONSTRAINTS, true, &der::sequence(&[])),
        authority.unwrap_or_default(),
        der::extension(oid::SUBJECT_ALT_NAME, true, &alternative_names(content.names)),
    ];
    let to_be_signed = certificate_body(
        key,
        &content.serial,
        &issuer.subject,
        content.validity,
        &name(common_name.as_deref().map(|text| (oid::COMMON_NAME, text))),
        content.public_key_info,
        &extensions.concat(),
    );
    key.signed(&to_be_signed)
}

/// DER of a self-signed root with an organisation as its subject.
pub(crate) fn root(
    key: &PrivateKey,
    organization: &str,
    validity: Validity,
    serial: &[u8; 16],
) -> Result<Vec<u8>, KeyError> {
    let subject = name(Some((oid::ORGANIZATION, organization)));
    let extensions = [
        // keyCertSign.
        der::extension(oid::KEY_USAGE, true, &der::bit_string(&[0b0000_0100], 2)),
        der::extension(oid::BASIC_CONSTRAINTS, true, &der::sequence(&[der::TRUE])),
        der::extension(oid::SUBJECT_KEY_ID, false, &der::octet_string(&key_id(key))),
    ];
    let public = key.public_key_info();
    let body = certificate_body(key, serial, &subject, validity, &subject, public, &extensions.concat());
    key.signed(&body)
}

fn certificate_body(
    key: &PrivateKey,
    serial: &[u8; 16],
    issuer: &[u8],
    validity: Validity,
    subject: &[u8],
    public_key_info: &[u8],
    extensions: &[u8],
) -> Vec<u8> {
    // The highest bit is cleared and the next set: a positive number of always 16 bytes.
    let mut serial = *serial;
    serial[0] = serial[0] & 0x7f | 0x40;
    der::sequence(&[
        &der::context(0, &der::integer(&[2])),
        &der::integer(&serial),
        &key.signature_algorithm(),
        issuer,
        &der::sequence(&[&der::time(validity.not_before), &der::time(validity.not_after)]),
        subject,
        public_key_info,
        &der::context(3, &der::element(0x30, extensions)),
    ])
}

/// The value of the extension with these names.
pub(crate) fn alternative_names(names: &[SubjectName]) -> Vec<u8> {
    let encoded = names.iter().map(|name| match name {
        SubjectName::Dns(text) => der::element(0x82, text.as_bytes()),
        SubjectName::Uri(text) => der::element(0x86, text.as_bytes()),
        SubjectName::Ip(IpAddr::V4(ip)) => der::element(0x87, &ip.octets()),
        SubjectName::Ip(IpAddr::V6(ip)) => der::element(0x87, &ip.octets()),
    });
    der::element(0x30, &encoded.collect::<Vec<_>>().concat())
}

fn key_id(key: &PrivateKey) -> Vec<u8> {
    digest::digest(&digest::SHA256, key.public_key_bytes()).as_ref()[..20].to_vec()
}
