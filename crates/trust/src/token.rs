//! Bearer tokens (JWT) verified with the keys of a JSON Web Key Set.

use aws_lc_rs::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::identity::excerpt;
use crate::key::{KeyError, PrivateKey};

/// Maximum size of a token. Tokens of Kubernetes have about 1 KiB.
pub const MAX_BYTES: usize = 16 * 1024;
/// Clocks of issuer and verifier may differ by this many seconds at the start of a token's validity.
const SKEW: i64 = 60;
const MIN_RSA_BYTES: usize = 256;

/// Why a token is refused.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum TokenError {
    #[error("the token has {0} bytes, at most {MAX_BYTES} are accepted")]
    TooLarge(usize),
    #[error("the token is not a JWT of three parts")]
    NotAJwt,
    #[error("the algorithm {0:?} of the token is not supported")]
    Algorithm(String),
    #[error("no key verifies the token's signature")]
    Signature,
    #[error("the token is from another issuer: {0:?}")]
    Issuer(String),
    #[error("the token is for another audience")]
    Audience,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYetValid,
    #[error("the token has no claim {0}")]
    Missing(&'static str),
}

/// Why a key set cannot be used.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum KeySetError {
    #[error("the key set is not a JSON object with a list of keys")]
    NotAKeySet,
    #[error("no key of the set can be used; RSA of at least 2048 bits, P-256, P-384 and P-521 are supported")]
    NoUsableKey,
}

/// Claims that a token must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRules {
    pub issuer: String,
    /// One of them must be an audience of the token.
    pub audiences: Vec<String>,
}

/// Claims of a verified token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenClaims {
    pub subject: String,
    /// In seconds since 1970.
    pub expires: i64,
}

/// The usable keys of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySet(Vec<TokenKey>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct TokenKey {
    id: Option<String>,
    public: PublicKey,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PublicKey {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// Curve name and point.
    Ec(&'static str, Vec<u8>),
}

impl KeySet {
    pub fn parse(text: &str) -> Result<KeySet, KeySetError> {
        let set: Value = serde_json::from_str(text).map_err(|_| KeySetError::NotAKeySet)?;
        let keys = set.get("keys").and_then(Value::as_array).ok_or(KeySetError::NotAKeySet)?;
        let usable: Vec<TokenKey> = keys.iter().filter_map(token_key).collect();
        if usable.is_empty() { Err(KeySetError::NoUsableKey) } else { Ok(KeySet(usable)) }
    }

    /// Verifies a token and returns its claims.
    pub fn verify(&self, token: &str, rules: &TokenRules, now: i64) -> Result<TokenClaims, TokenError> {
        if token.len() > MAX_BYTES {
            return Err(TokenError::TooLarge(token.len()));
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::NotAJwt)?;
        let (header, payload) = signed.split_once('.').ok_or(TokenError::NotAJwt)?;
        let (header, payload) = (object(header)?, object(payload)?);
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).map_err(|_| TokenError::NotAJwt)?;
        self.check_signature(&header, signed.as_bytes(), &signature)?;
        claims(&payload, rules, now)
    }

    fn check_signature(&self, header: &Map<String, Value>, signed: &[u8], signature: &[u8]) -> Result<(), TokenError> {
        let name = header.get("alg").and_then(Value::as_str).unwrap_or_default();
        let algorithm = Algorithm::parse(name).ok_or_else(|| TokenError::Algorithm(excerpt(name)))?;
        let id = header.get("kid").and_then(Value::as_str);
        let is_named = |key: &&TokenKey| key.id.is_none() || id.is_none() || key.id.as_deref() == id;
        let is_signer = |key: &TokenKey| algorithm.verify(&key.public, signed, signature);
        if self.0.iter().filter(is_named).any(is_signer) { Ok(()) } else { Err(TokenError::Signature) }
    }
}

enum Algorithm {
    Rsa(&'static RsaParameters),
    Ec(&'static str, &'static dyn VerificationAlgorithm),
}

impl Algorithm {
    fn parse(name: &str) -> Option<Algorithm> {
        Some(match name {
            "RS256" => Algorithm::Rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
            "RS384" => Algorithm::Rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
            "RS512" => Algorithm::Rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
            "ES256" => Algorithm::Ec("P-256", &signature::ECDSA_P256_SHA256_FIXED),
            "ES384" => Algorithm::Ec("P-384", &signature::ECDSA_P384_SHA384_FIXED),
            "ES512" => Algorithm::Ec("P-521", &signature::ECDSA_P521_SHA512_FIXED),
            _ => return None,
        })
    }

    fn verify(&self, key: &PublicKey, message: &[u8], signature: &[u8]) -> bool {
        match (self, key) {
            (Algorithm::Rsa(parameters), PublicKey::Rsa { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature).is_ok()
            }
            (Algorithm::Ec(curve, algorithm), PublicKey::Ec(own, point)) if curve == own => {
                UnparsedPublicKey::new(*algorithm, point).verify(message, signature).is_ok()
            }
            _ => false,
        }
    }
}

fn token_key(key: &Value) -> Option<TokenKey> {
    let text = |name: &str| key.get(name).and_then(Value::as_str);
    let bytes = |name: &str| BASE64_URL_SAFE_NO_PAD.decode(text(name)?.trim_end_matches('=')).ok();
    if text("use").is_some_and(|usage| usage != "sig") {
        return None;
    }
    let public = match text("kty")? {
        "RSA" => PublicKey::Rsa { n: bytes("n").filter(|n| n.len() >= MIN_RSA_BYTES)?, e: bytes("e")? },
        "EC" => {
            let (curve, size) = [("P-256", 32), ("P-384", 48), ("P-521", 66)]
                .into_iter()
                .find(|(curve, _)| Some(*curve) == text("crv"))?;
            let coordinate = |name: &str| bytes(name).filter(|bytes| bytes.len() == size);
            PublicKey::Ec(curve, [vec![4], coordinate("x")?, coordinate("y")?].concat())
        }
        _ => return None,
    };
    Some(TokenKey { id: text("kid").map(str::to_owned), public })
}

fn object(part: &str) -> Result<Map<String, Value>, TokenError> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::NotAJwt)?;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(object)) => Ok(object),
        _ => Err(TokenError::NotAJwt),
    }
}

fn claims(payload: &Map<String, Value>, rules: &TokenRules, now: i64) -> Result<TokenClaims, TokenError> {
    let text = |name: &'static str| payload.get(name).and_then(Value::as_str).ok_or(TokenError::Missing(name));
    let issuer = text("iss")?;
    if issuer != rules.issuer {
        return Err(TokenError::Issuer(excerpt(issuer)));
    }
    let is_expected = |audience: &Value| rules.audiences.iter().any(|expected| audience.as_str() == Some(expected));
    let is_for_us = match payload.get("aud") {
        Some(Value::Array(audiences)) => audiences.iter().any(is_expected),
        Some(audience) => is_expected(audience),
        None => false,
    };
    if !is_for_us {
        return Err(TokenError::Audience);
    }
    let expires = payload.get("exp").and_then(seconds).ok_or(TokenError::Missing("exp"))?;
    if now >= expires {
        return Err(TokenError::Expired);
    }
    let not_before = payload.get("nbf").map(|value| seconds(value).ok_or(TokenError::Missing("nbf"))).transpose()?;
    if not_before.is_some_and(|start| start > now.saturating_add(SKEW)) {
        return Err(TokenError::NotYetValid);
    }
    Ok(TokenClaims { subject: text("sub")?.to_owned(), expires })
}

/// A NumericDate, which may have a fraction. A value beyond the range of integers saturates.
fn seconds(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_f64().filter(|time| time.is_finite()).map(|time| time as i64))
}

/// The expiry claim of a token, without verifying it. For tokens that another party has verified.
pub fn unverified_expiry(token: &str) -> Option<i64> {
    if token.len() > MAX_BYTES {
        return None;
    }
    let payload = object(token.split('.').nth(1)?).ok()?;
    seconds(payload.get("exp")?)
}

/// A token signed with ES256, for meshes whose tokens are made by a tool instead of Kubernetes. `key` is a P-256 key.
pub fn sign(key: &PrivateKey, key_id: &str, claims: &Value) -> Result<String, KeyError> {
    let header = serde_json::json!({"alg": "ES256", "kid": key_id, "typ": "JWT"});
    let encode = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", encode(&header), encode(claims));
    let signature = fixed_p256(&key.sign(signed.as_bytes())?).ok_or(KeyError::Unsupported)?;
    Ok(format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
}

/// The key set that verifies tokens of `sign`.
pub fn key_set(key: &PrivateKey, key_id: &str) -> Result<String, KeyError> {
    let (Some(4), Some((x, y))) =
        (key.public_key_bytes().first(), key.public_key_bytes().get(1..65).map(|point| point.split_at(32)))
    else {
        return Err(KeyError::Unsupported);
    };
    let [x, y] = [x, y].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part));
    let key = serde_json::json!({"kty": "EC", "crv": "P-256", "use": "sig", "kid": key_id, "x": x, "y": y});
    Ok(serde_json::json!({"keys": [key]}).to_string())
}

/// r and s of a DER signature, each in 32 bytes.
fn fixed_p256(signature: &[u8]) -> Option<Vec<u8>> {
    use x509_parser::asn1_rs::{FromDer, Integer, Sequence};
    let (_, parts) = Sequence::from_der(signature).ok()?;
    let (rest, r) = Integer::from_der(&parts.content).ok()?;
    let (_, s) = Integer::from_der(rest).ok()?;
    let mut fixed = Vec::with_capacity(64);
    for number in [r, s] {
        let digits = number.as_ref();
        let digits = &digits[digits.iter().take_while(|byte| **byte == 0).count()..];
        fixed.extend(std::iter::repeat_n(0, 32_usize.checked_sub(digits.len())?));
        fixed.extend_from_slice(digits);
    }
    Some(fixed)
}
