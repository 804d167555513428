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

/// Messages about unusable keys of a set; an error if no key is usable.
pub fn check(text: &str) -> Result<Vec<String>, String> {
    let set = document::read(text).map_err(|error| format!("the set is no JSON that Envoy reads: {error}"))?;
    let keys = match set.get("keys") {
        Some(Value::Array(keys)) => keys,
        Some(_) => return Err("\"keys\" is not a list".to_owned()),
        None => return Err("there is no list of \"keys\"".to_owned()),
    };
    let wrong = |(index, key): (usize, &Value)| key_of(key).err().map(|error| format!("key {index}: {error}"));
    let mistakes: Vec<String> = keys.iter().enumerate().filter_map(wrong).collect();
    match mistakes.first() {
        _ if mistakes.len() < keys.len() => Ok(mistakes),
        Some(first) => Err(format!("no key can be used; {first}")),
        None => Err("there are no keys".to_owned()),
    }
}

type Checked = Result<(), String>;

fn key_of(key: &Value) -> Checked {
    let Value::Object(key) = key else { return Err("not an object".to_owned()) };
    match key.get("kty") {
        Some(Value::String(kind)) => match kind.as_str() {
            "RSA" => rsa(key),
            "EC" => elliptic(key),
            "OKP" => edwards(key),
            "oct" => shared_secret(key),
            other => Err(format!("kty {other:?} is not supported")),
        },
        Some(_) => Err("kty is not a string".to_owned()),
        None => Err("kty is missing".to_owned()),
    }
}

fn rsa(key: &Map<String, Value>) -> Checked {
    let named = algorithm(key);
    if !named.is_empty() && !named.starts_with("RS") && !named.starts_with("PS") {
        return Err(format!("alg {named:?} is not one of RSA"));
    }
    let (modulus, exponent) = (number(key, "n")?, number(key, "e")?);
    let bits = modulus.first().map_or(0, |first| modulus.len() * 8 - first.leading_zeros() as usize);
    if !RSA_BITS.contains(&bits) {
        return Err(format!("n has {bits} bits, outside of {} to {}", RSA_BITS.start(), RSA_BITS.end()));
    }
    if modulus.last().is_some_and(|last| last % 2 == 0) {
        return Err("n is even".to_owned());
    }
    let is_known = RSA_EXPONENTS.contains(&exponent.as_slice());
    if is_known { Ok(()) } else { Err("e is neither 3 nor 65537".to_owned()) }
}

fn elliptic(key: &Map<String, Value>) -> Checked {
    let named = algorithm(key);
    if !named.is_empty() && !named.starts_with("ES") {
        return Err(format!("alg {named:?} is not one of elliptic curves"));
    }
    let stated = match key.get("crv") {
        None => "",
        Some(Value::String(name)) => name,
        Some(_) => return Err("crv is not a string".to_owned()),
    };
    let name = match (stated, named) {
        ("", "") => "P-256",
        ("", "ES256") => "P-256",
        ("", "ES384") => "P-384",
        ("", "ES512") => "P-521",
        (stated, _) => stated,
    };
    let Some((curve, its_algorithm)) = Curve::of(name) else { return Err(format!("crv {name:?} is not supported")) };
    if !named.is_empty() && named != its_algorithm {
        return Err(format!("alg {named:?} does not go with {name}"));
    }
    let (x, y) = (number(key, "x")?, number(key, "y")?);
    let is_on_curve = curve.contains(&x, &y);
    if is_on_curve { Ok(()) } else { Err(format!("x and y are no point of {name}")) }
}

fn edwards(key: &Map<String, Value>) -> Checked {
    let named = algorithm(key);
    if !named.is_empty() && named != "EdDSA" {
        return Err(format!("alg {named:?} is not EdDSA"));
    }
    match text(key, "crv")? {
        "Ed25519" => {}
        other => return Err(format!("crv {other:?} is not supported")),
    }
    let length = bytes(key, "x")?.len();
    if length == 32 { Ok(()) } else { Err(format!("x has {length} bytes instead of 32")) }
}

fn shared_secret(key: &Map<String, Value>) -> Checked {
    let named = algorithm(key);
    if !named.is_empty() && !named.starts_with("HS") {
        return Err(format!("alg {named:?} is not one of shared secrets"));
    }
    let is_empty = bytes(key, "k")?.is_empty();
    if is_empty { Err("k is empty".to_owned()) } else { Ok(()) }
}

/// The algorithm; empty if it is not a string.
fn algorithm(key: &Map<String, Value>) -> &str {
    key.get("alg").and_then(Value::as_str).unwrap_or_default()
}

fn text<'a>(key: &'a Map<String, Value>, field: &str) -> Result<&'a str, String> {
    match key.get(field) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(format!("{field} is not a string")),
        None => Err(format!("{field} is missing")),
    }
}

/// A big-endian number without leading zeros.
fn number(key: &Map<String, Value>, field: &str) -> Result<Vec<u8>, String> {
    let bytes = bytes(key, field)?;
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    Ok(bytes.get(zeros..).unwrap_or_default().to_vec())
}

/// Decodes base64url like Envoy: with white space anywhere, and with or without padding, even of dots.
fn bytes(key: &Map<String, Value>, field: &str) -> Result<Vec<u8>, String> {
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
    decoded.ok_or_else(|| format!("{field} is not base64url"))
}

#[cfg(test)]
mod tests;
