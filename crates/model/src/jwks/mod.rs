//! Checks which JSON Web Key Sets Envoy can use. Envoy rejects a whole listener for a set without a usable key, so such a
//! set is never sent. The rules are those of Envoy 1.40's library, determined by experiment.

mod curve;
mod document;

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value};

use curve::Curve;

/// Allowed bits of an RSA modulus.
const RSA_BITS: std::ops::RangeInclusive<usize> = 512..=16384;
/// Allowed RSA exponents: 3 and 65537.
const RSA_EXPONENTS: [&[u8]; 2] = [&[3], &[1, 0, 1]];

/// Why a set has no usable key.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwksError {
    #[error("the set is not JSON that Envoy parses: {0}")]
    Json(String),
    #[error("\"keys\" is not a list")]
    KeysNotAList,
    #[error("there is no list of \"keys\"")]
    NoKeyList,
    #[error("there are no keys")]
    Empty,
    /// With the error of the first key.
    #[error("no key can be used; {0}")]
    NoUsableKey(UnusableKey),
}

/// A key that Envoy ignores.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("key {index}: {error}")]
pub struct UnusableKey {
    index: usize,
    error: KeyError,
}

/// Why a key is not usable.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("not an object")]
    NotAnObject,
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0} is not a string")]
    NotAString(&'static str),
    #[error("{0} is not base64url")]
    NotBase64(&'static str),
    #[error("{field} {value:?} is not supported")]
    Unsupported { field: &'static str, value: String },
    #[error("alg {alg:?} is not an algorithm for {family} keys")]
    WrongAlgorithm { alg: String, family: &'static str },
    #[error("alg {alg:?} cannot be used with curve {curve}")]
    WrongCurve { alg: String, curve: String },
    #[error("the RSA modulus n has {0} bits, outside of {low} to {high}", low = RSA_BITS.start(), high = RSA_BITS.end())]
    ModulusSize(usize),
    #[error("the RSA modulus n is even")]
    EvenModulus,
    #[error("e is neither 3 nor 65537")]
    Exponent,
    #[error("x and y are not a point on the curve {0}")]
    NotOnCurve(String),
    #[error("x has {0} bytes instead of 32")]
    Length(usize),
    #[error("k is empty")]
    EmptySecret,
}

/// The unusable keys of a set; an error if no key is usable.
pub fn check(text: &str) -> Result<Vec<UnusableKey>, JwksError> {
    let set = document::read(text).map_err(|error| JwksError::Json(error.to_string()))?;
    let keys = match set.get("keys") {
        Some(Value::Array(keys)) => keys,
        Some(_) => return Err(JwksError::KeysNotAList),
        None => return Err(JwksError::NoKeyList),
    };
    let unusable = |(index, key): (usize, &Value)| key_of(key).err().map(|error| UnusableKey { index, error });
    let mut found: Vec<UnusableKey> = keys.iter().enumerate().filter_map(unusable).collect();
    match keys.len() {
        0 => Err(JwksError::Empty),
        all if found.len() < all => Ok(found),
        _ => Err(JwksError::NoUsableKey(found.swap_remove(0))),
    }
}

fn key_of(key: &Value) -> Result<(), KeyError> {
    let Value::Object(key) = key else { return Err(KeyError::NotAnObject) };
    match key.get("kty") {
        Some(Value::String(kind)) => match kind.as_str() {
            "RSA" => rsa(key),
            "EC" => elliptic(key),
            "OKP" => edwards(key),
            "oct" => shared_secret(key),
            other => Err(unsupported("kty", other)),
        },
        Some(_) => Err(KeyError::NotAString("kty")),
        None => Err(KeyError::Missing("kty")),
    }
}

fn unsupported(field: &'static str, value: &str) -> KeyError {
    KeyError::Unsupported { field, value: value.to_owned() }
}

fn wrong_algorithm(alg: &str, family: &'static str) -> KeyError {
    KeyError::WrongAlgorithm { alg: alg.to_owned(), family }
}

fn rsa(key: &Map<String, Value>) -> Result<(), KeyError> {
    let named = algorithm(key);
    if !named.is_empty() && !named.starts_with("RS") && !named.starts_with("PS") {
        return Err(wrong_algorithm(named, "RSA"));
    }
    let (modulus, exponent) = (number(key, "n")?, number(key, "e")?);
    let bits = modulus.first().map_or(0, |first| modulus.len() * 8 - first.leading_zeros() as usize);
    if !RSA_BITS.contains(&bits) {
        return Err(KeyError::ModulusSize(bits));
    }
    if modulus.last().is_some_and(|last| last % 2 == 0) {
        return Err(KeyError::EvenModulus);
    }
    let is_known = RSA_EXPONENTS.contains(&exponent.as_slice());
    if is_known { Ok(()) } else { Err(KeyError::Exponent) }
}

fn elliptic(key: &Map<String, Value>) -> Result<(), KeyError> {
    let named = algorithm(key);
    if !named.is_empty() && !named.starts_with("ES") {
        return Err(wrong_algorithm(named, "elliptic curves"));
    }
    let stated = match key.get("crv") {
        None => "",
        Some(Value::String(name)) => name,
        Some(_) => return Err(KeyError::NotAString("crv")),
    };
    let name = match (stated, named) {
        ("", "") => "P-256",
        ("", "ES256") => "P-256",
        ("", "ES384") => "P-384",
        ("", "ES512") => "P-521",
        (stated, _) => stated,
    };
    let Some((curve, its_algorithm)) = Curve::of(name) else { return Err(unsupported("crv", name)) };
    if !named.is_empty() && named != its_algorithm {
        return Err(KeyError::WrongCurve { alg: named.to_owned(), curve: name.to_owned() });
    }
    let (x, y) = (number(key, "x")?, number(key, "y")?);
    let is_on_curve = curve.contains(&x, &y);
    if is_on_curve { Ok(()) } else { Err(KeyError::NotOnCurve(name.to_owned())) }
}

fn edwards(key: &Map<String, Value>) -> Result<(), KeyError> {
    let named = algorithm(key);
    if !named.is_empty() && named != "EdDSA" {
        return Err(wrong_algorithm(named, "EdDSA"));
    }
    match text(key, "crv")? {
        "Ed25519" => {}
        other => return Err(unsupported("crv", other)),
    }
    let length = bytes(key, "x")?.len();
    if length == 32 { Ok(()) } else { Err(KeyError::Length(length)) }
}

fn shared_secret(key: &Map<String, Value>) -> Result<(), KeyError> {
    let named = algorithm(key);
    if !named.is_empty() && !named.starts_with("HS") {
        return Err(wrong_algorithm(named, "shared secrets"));
    }
    let is_empty = bytes(key, "k")?.is_empty();
    if is_empty { Err(KeyError::EmptySecret) } else { Ok(()) }
}

/// The algorithm; empty if it is not a string.
fn algorithm(key: &Map<String, Value>) -> &str {
    key.get("alg").and_then(Value::as_str).unwrap_or_default()
}

fn text<'a>(key: &'a Map<String, Value>, field: &'static str) -> Result<&'a str, KeyError> {
    match key.get(field) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(KeyError::NotAString(field)),
        None => Err(KeyError::Missing(field)),
    }
}

/// A big-endian number without leading zeros.
fn number(key: &Map<String, Value>, field: &'static str) -> Result<Vec<u8>, KeyError> {
    let bytes = bytes(key, field)?;
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    Ok(bytes.get(zeros..).unwrap_or_default().to_vec())
}

/// Decodes base64url like Envoy: with white space anywhere, and with or without padding, even of dots.
fn bytes(key: &Map<String, Value>, field: &'static str) -> Result<Vec<u8>, KeyError> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &URL_SAFE,
        GeneralPurposeConfig::new()
            .with_decode_padding_mode(DecodePaddingMode::RequireNone)
            .with_decode_allow_trailing_bits(true),
    );
    let text: String = text(key, field)?.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let bare = text.trim_end_matches(['=', '.']);
    let is_padded = bare.len() < text.len();
    let padding_fits = !is_padded || (text.len().is_multiple_of(4) && text.len() - bare.len() <= 2);
    let decoded = LENIENT.decode(bare).ok().filter(|_| padding_fits);
    decoded.ok_or(KeyError::NotBase64(field))
}

#[cfg(test)]
mod tests;
