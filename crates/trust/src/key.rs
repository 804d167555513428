//! Private keys: generated, read from and written to PEM, used for signing. RSA and ECDSA. Key bytes are zeroised on
//! drop and never printed.

use std::fmt;

use aws_lc_rs::encoding::{AsDer, EcPrivateKeyRfc5915Der, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{self, EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair, RsaKeyPair};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::der::{self, oid};
use crate::pem;

/// A text that contains a key; zeroised on drop.
pub type SecretText = Zeroizing<String>;

/// Kinds of keys that can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    Rsa2048,
    Rsa3072,
    Rsa4096,
    P256,
    P384,
}

impl KeyKind {
    /// The RSA kind with at least this many bits; `None` above 4096 and below 2048.
    pub fn rsa(bits: u32) -> Option<KeyKind> {
        match bits {
            2048 => Some(KeyKind::Rsa2048),
            2049..=3072 => Some(KeyKind::Rsa3072),
            3073..=4096 => Some(KeyKind::Rsa4096),
            _ => None,
        }
    }
}

/// How a key is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyFormat {
    /// PKCS #1 for RSA, SEC1 for EC keys.
    #[default]
    Traditional,
    Pkcs8,
}

/// Why a key cannot be made, read or used.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    #[error(transparent)]
    Pem(#[from] pem::PemError),
    #[error("there is no private key in the PEM blocks")]
    NoKey,
    #[error("the private key is not RSA of 2048 to 8192 bits or ECDSA on P-256, P-384 or P-521")]
    Unsupported,
    #[error("the cryptographic library could not {0}")]
    Library(&'static str),
}

/// A private key.
pub struct PrivateKey {
    pair: Pair,
    /// DER of the SubjectPublicKeyInfo.
    public: Vec<u8>,
}

enum Pair {
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair, &'static Curve),
}

struct Curve {
    oid: &'static [u8],
    signature: &'static [u8],
    algorithm: &'static EcdsaSigningAlgorithm,
}

static P256: Curve =
    Curve { oid: oid::P256, signature: oid::ECDSA_SHA256, algorithm: &signature::ECDSA_P256_SHA256_ASN1_SIGNING };
static P384: Curve =
    Curve { oid: oid::P384, signature: oid::ECDSA_SHA384, algorithm: &signature::ECDSA_P384_SHA384_ASN1_SIGNING };
static P521: Curve =
    Curve { oid: oid::P521, signature: oid::ECDSA_SHA512, algorithm: &signature::ECDSA_P521_SHA512_ASN1_SIGNING };

impl PrivateKey {
    pub fn generate(kind: KeyKind) -> Result<PrivateKey, KeyError> {
        let rsa = |size| RsaKeyPair::generate(size).map(Pair::Rsa);
        let ec = |curve: &'static Curve| EcdsaKeyPair::generate(curve.algorithm).map(|pair| Pair::Ec(pair, curve));
        let pair = match kind {
            KeyKind::Rsa2048 => rsa(KeySize::Rsa2048),
            KeyKind::Rsa3072 => rsa(KeySize::Rsa3072),
            KeyKind::Rsa4096 => rsa(KeySize::Rsa4096),
            KeyKind::P256 => ec(&P256),
            KeyKind::P384 => ec(&P384),
        };
        Ok(PrivateKey::new(pair.map_err(|_| KeyError::Library("generate a key"))?))
    }

    /// The first private key of a PEM text: PKCS #1, SEC1 or PKCS #8.
    pub fn from_pem(text: &str) -> Result<PrivateKey, KeyError> {
        let blocks = pem::blocks(text)?;
        let block = blocks.iter().find(|block| block.label.ends_with("PRIVATE KEY")).ok_or(KeyError::NoKey)?;
        let rsa = |read: fn(&[u8]) -> Result<RsaKeyPair, aws_lc_rs::error::KeyRejected>| {
            read(&block.content).ok().filter(|pair| pair.public_modulus_len() >= 256).map(Pair::Rsa)
        };
        let ec = || {
            let read = |curve: &'static Curve| {
                let pair = EcdsaKeyPair::from_private_key_der(curve.algorithm, &block.content);
                pair.or_else(|_| EcdsaKeyPair::from_pkcs8(curve.algorithm, &block.content))
                    .ok()
                    .map(|pair| Pair::Ec(pair, curve))
            };
            [&P256, &P384, &P521].into_iter().find_map(read)
        };
        let pair = match &*block.label {
            "RSA PRIVATE KEY" => rsa(RsaKeyPair::from_der),
            "EC PRIVATE KEY" => ec(),
            "PRIVATE KEY" => rsa(RsaKeyPair::from_pkcs8).or_else(ec),
            _ => None,
        };
        pair.map(PrivateKey::new).ok_or(KeyError::Unsupported)
    }

    fn new(pair: Pair) -> PrivateKey {
        let public = match &pair {
            Pair::Rsa(pair) => {
                let bits = der::bit_string(pair.public_key().as_ref(), 0);
                der::sequence(&[&der::algorithm(oid::RSA, der::NULL), &bits])
            }
            Pair::Ec(pair, curve) => {
                let bits = der::bit_string(pair.public_key().as_ref(), 0);
                der::sequence(&[&der::algorithm(oid::EC_PUBLIC_KEY, &der::object_id(curve.oid)), &bits])
            }
        };
        PrivateKey { pair, public }
    }

    /// DER of the SubjectPublicKeyInfo.
    pub fn public_key_info(&self) -> &[u8] {
        &self.public
    }

    /// The public key alone: RSAPublicKey, or a point in uncompressed form.
    pub fn public_key_bytes(&self) -> &[u8] {
        match &self.pair {
            Pair::Rsa(pair) => pair.public_key().as_ref(),
            Pair::Ec(pair, _) => pair.public_key().as_ref(),
        }
    }

    /// True for an EC key.
    pub fn is_ec(&self) -> bool {
        matches!(self.pair, Pair::Ec(..))
    }

    /// Kind for a new key of the same sort.
    pub fn similar_kind(&self) -> KeyKind {
        match &self.pair {
            Pair::Ec(_, curve) if curve.oid == oid::P256 => KeyKind::P256,
            Pair::Ec(..) => KeyKind::P384,
            Pair::Rsa(pair) => {
                KeyKind::rsa(8 * u32::try_from(pair.public_modulus_len()).unwrap_or(0)).unwrap_or(KeyKind::Rsa4096)
            }
        }
    }

    /// The key as PEM.
    pub fn to_pem(&self, format: KeyFormat) -> Result<SecretText, KeyError> {
        let failed = KeyError::Library("encode a key");
        let (label, content) = match (&self.pair, format) {
            (Pair::Rsa(pair), _) => {
                let der: Pkcs8V1Der<'static> = pair.as_der().map_err(|_| KeyError::Library("encode a key"))?;
                let der = Zeroizing::new(der.as_ref().to_vec());
                match format {
                    KeyFormat::Pkcs8 => ("PRIVATE KEY", der),
                    KeyFormat::Traditional => ("RSA PRIVATE KEY", pkcs1_of(&der).ok_or(failed)?),
                }
            }
            (Pair::Ec(pair, _), KeyFormat::Pkcs8) => {
                let document = pair.to_pkcs8v1().map_err(|_| failed)?;
                ("PRIVATE KEY", Zeroizing::new(document.as_ref().to_vec()))
            }
            (Pair::Ec(pair, _), KeyFormat::Traditional) => {
                let der: EcPrivateKeyRfc5915Der<'static> = pair.private_key().as_der().map_err(|_| failed)?;
                ("EC PRIVATE KEY", Zeroizing::new(der.as_ref().to_vec()))
            }
        };
        Ok(pem::encode(label, &content).into())
    }

    /// DER of the AlgorithmIdentifier of this key's signatures.
    pub(crate) fn signature_algorithm(&self) -> Vec<u8> {
        match &self.pair {
            Pair::Rsa(_) => der::algorithm(oid::SHA256_RSA, der::NULL),
            Pair::Ec(_, curve) => der::algorithm(curve.signature, &[]),
        }
    }

    /// Signs with the algorithm of `signature_algorithm`; ECDSA signatures are DER.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let failed = |_| KeyError::Library("sign");
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Ec(pair, _) => pair.sign(&random, message).map(|signed| signed.as_ref().to_vec()).map_err(failed),
            Pair::Rsa(pair) => {
                let mut signed = vec![0; pair.public_modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA256, &random, message, &mut signed).map_err(failed)?;
                Ok(signed)
            }
        }
    }

    /// A DER object of three parts: the signed content, the algorithm and the signature.
    pub(crate) fn signed(&self, content: &[u8]) -> Result<Vec<u8>, KeyError> {
        let signature = der::bit_string(&self.sign(content)?, 0);
        Ok(der::sequence(&[content, &self.signature_algorithm(), &signature]))
    }
}

/// The RSAPrivateKey inside of a PKCS #8 document.
fn pkcs1_of(document: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    use x509_parser::asn1_rs::{FromDer, Integer, OctetString, Sequence};
    let (_, outer) = Sequence::from_der(document).ok()?;
    let (rest, _version) = Integer::from_der(&outer.content).ok()?;
    let (rest, _algorithm) = Sequence::from_der(rest).ok()?;
    let (_, key) = OctetString::from_der(rest).ok()?;
    Some(Zeroizing::new(key.as_cow().to_vec()))
}

/// Prints the kind only.
impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_ec() { "PrivateKey(EC)" } else { "PrivateKey(RSA)" })
    }
}

/// 16 random bytes for a serial number.
pub fn random_serial() -> Result<[u8; 16], KeyError> {
    let mut serial = [0; 16];
    aws_lc_rs::rand::fill(&mut serial).map_err(|_| KeyError::Library("make random bytes"))?;
    Ok(serial)
}

#[cfg(test)]
mod tests {
    use super::{KeyError, KeyFormat, KeyKind, PrivateKey};

    #[test]
    fn keys_survive_writing_and_reading_in_every_format() {
        for kind in [KeyKind::Rsa2048, KeyKind::P256, KeyKind::P384] {
            let key = PrivateKey::generate(kind).unwrap();
            for format in [KeyFormat::Traditional, KeyFormat::Pkcs8] {
                let text = key.to_pem(format).unwrap();
                let read = PrivateKey::from_pem(&text).unwrap();
                assert_eq!(read.public_key_info(), key.public_key_info(), "{kind:?} {format:?}");
                assert_eq!(read.similar_kind(), kind);
            }
        }
    }

    #[test]
    fn a_key_is_never_printed() {
        let key = PrivateKey::generate(KeyKind::P256).unwrap();
        assert_eq!(format!("{key:?}"), "PrivateKey(EC)");
    }

    #[test]
    fn text_without_a_usable_key_is_an_error() {
        let certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(PrivateKey::from_pem(certificate).unwrap_err(), KeyError::NoKey);
        let odd = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert_eq!(PrivateKey::from_pem(odd).unwrap_err(), KeyError::Unsupported);
    }
}
