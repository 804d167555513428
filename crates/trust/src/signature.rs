//! Verifies signatures of CSRs and certificates. RSA keys below 2048 bits and curves other than P-256, P-384 and P-521
//! verify nothing.

use aws_lc_rs::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use x509_parser::x509::{AlgorithmIdentifier, SubjectPublicKeyInfo};

use crate::der::oid;

/// Why a signature or a key is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("the public key is not RSA of 2048 to 8192 bits or ECDSA on P-256, P-384 or P-521")]
    Key,
    #[error("the signature algorithm is not supported for this key")]
    Algorithm,
    #[error("the signature does not match the public key")]
    Mismatch,
}

const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

pub(crate) fn verify(
    key: &SubjectPublicKeyInfo<'_>,
    algorithm: &AlgorithmIdentifier<'_>,
    message: &[u8],
    signed: &[u8],
) -> Result<(), SignatureError> {
    check_key(key)?;
    let algorithm = verification(curve(key), algorithm.algorithm.as_bytes()).ok_or(SignatureError::Algorithm)?;
    let key = UnparsedPublicKey::new(algorithm, &key.subject_public_key.data);
    key.verify(message, signed).map_err(|_| SignatureError::Mismatch)
}

/// Whether certificates may be issued for this key.
pub(crate) fn check_key(key: &SubjectPublicKeyInfo<'_>) -> Result<(), SignatureError> {
    let kind = key.algorithm.algorithm.as_bytes();
    let is_good = if kind == oid::RSA {
        rsa_bits(&key.subject_public_key.data).is_some_and(|bits| RSA_BITS.contains(&bits))
    } else {
        kind == oid::EC_PUBLIC_KEY && curve(key).is_some()
    };
    if is_good { Ok(()) } else { Err(SignatureError::Key) }
}

fn rsa_bits(key: &[u8]) -> Option<usize> {
    use x509_parser::asn1_rs::{FromDer, Integer, Sequence};
    let (_, parts) = Sequence::from_der(key).ok()?;
    let (_, modulus) = Integer::from_der(&parts.content).ok()?;
    let digits = modulus.as_ref();
    let zeros = digits.iter().take_while(|byte| **byte == 0).count();
    let first = digits.get(zeros)?;
    Some(8 * (digits.len() - zeros) - first.leading_zeros() as usize)
}

/// The curve of an EC key.
fn curve(key: &SubjectPublicKeyInfo<'_>) -> Option<&'static [u8]> {
    let named = key.algorithm.parameters.as_ref()?.as_oid().ok()?;
    [oid::P256, oid::P384, oid::P521].into_iter().find(|curve| *curve == named.as_bytes())
}

fn verification(curve: Option<&[u8]>, algorithm: &[u8]) -> Option<&'static dyn VerificationAlgorithm> {
    let found: &'static dyn VerificationAlgorithm = match (curve, algorithm) {
        (None, oid::SHA256_RSA) => &signature::RSA_PKCS1_2048_8192_SHA256,
        (None, oid::SHA384_RSA) => &signature::RSA_PKCS1_2048_8192_SHA384,
        (None, oid::SHA512_RSA) => &signature::RSA_PKCS1_2048_8192_SHA512,
        (Some(oid::P256), oid::ECDSA_SHA256) => &signature::ECDSA_P256_SHA256_ASN1,
        (Some(oid::P256), oid::ECDSA_SHA384) => &signature::ECDSA_P256_SHA384_ASN1,
        (Some(oid::P384), oid::ECDSA_SHA256) => &signature::ECDSA_P384_SHA256_ASN1,
        (Some(oid::P384), oid::ECDSA_SHA384) => &signature::ECDSA_P384_SHA384_ASN1,
        (Some(oid::P521), oid::ECDSA_SHA256) => &signature::ECDSA_P521_SHA256_ASN1,
        (Some(oid::P521), oid::ECDSA_SHA384) => &signature::ECDSA_P521_SHA384_ASN1,
        (Some(oid::P521), oid::ECDSA_SHA512) => &signature::ECDSA_P521_SHA512_ASN1,
        _ => return None,
    };
    Some(found)
}
