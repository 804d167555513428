//! Tokens: the right ones pass, every other one is refused.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::{Value, json};
use trust::key::{KeyKind, PrivateKey};
use trust::token::{self, KeySet, TokenClaims, TokenError, TokenRules};

const NOW: i64 = 1_800_000_000;

fn claims() -> Value {
    json!({"iss": "https://issuer", "aud": ["istio-ca"], "sub": "system:serviceaccount:shop:front",
        "exp": NOW + 600, "nbf": NOW, "iat": NOW})
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn rules() -> TokenRules {
    TokenRules { issuer: "https://issuer".to_owned(), audiences: vec!["other".to_owned(), "istio-ca".to_owned()] }
}

fn key() -> PrivateKey {
    PrivateKey::generate(KeyKind::P256).unwrap()
}

#[test]
fn a_good_token_passes() {
    let key = key();
    let keys = KeySet::parse(&token::key_set(&key, "one").unwrap()).unwrap();
    let expected = TokenClaims { subject: "system:serviceaccount:shop:front".to_owned(), expires: NOW + 600 };
    for good in [claims(), with("aud", json!("istio-ca")), with("exp", json!((NOW + 600) as f64))] {
        let token = token::sign(&key, "one", &good).unwrap();
        assert_eq!(keys.verify(&token, &rules(), NOW), Ok(expected.clone()), "{good}");
        assert_eq!(token::unverified_expiry(&token), Some(NOW + 600));
    }
}

#[test]
fn wrong_claims_are_refused() {
    let key = key();
    let keys = KeySet::parse(&token::key_set(&key, "one").unwrap()).unwrap();
    for (bad, expected) in [
        (with("exp", json!(NOW)), TokenError::Expired),
        (with("exp", json!(-1e300)), TokenError::Expired),
        (with("exp", Value::Null), TokenError::Missing("exp")),
        (with("nbf", json!(NOW + 120)), TokenError::NotYetValid),
        (with("nbf", json!("soon")), TokenError::Missing("nbf")),
        (with("aud", json!(["kubernetes"])), TokenError::Audience),
        (with("aud", Value::Null), TokenError::Audience),
        (with("aud", json!([["istio-ca"]])), TokenError::Audience),
        (with("iss", json!("https://elsewhere")), TokenError::Issuer("https://elsewhere".to_owned())),
        (with("sub", json!(7)), TokenError::Missing("sub")),
        (Value::Null, TokenError::NotAJwt),
        (json!([claims()]), TokenError::NotAJwt),
    ] {
        let token = token::sign(&key, "one", &bad).unwrap();
        assert_eq!(keys.verify(&token, &rules(), NOW), Err(expected), "{bad}");
    }
}

#[test]
fn forged_tokens_are_refused() {
    let (key, other) = (key(), key());
    let keys = KeySet::parse(&token::key_set(&key, "one").unwrap()).unwrap();
    let good = token::sign(&key, "one", &claims()).unwrap();
    let check = |token: &str, expected: TokenError| assert_eq!(keys.verify(token, &rules(), NOW), Err(expected));
    check(&token::sign(&other, "one", &claims()).unwrap(), TokenError::Signature);
    check(&token::sign(&key, "two", &claims()).unwrap(), TokenError::Signature);
    // {"alg":"none"} and {"alg":"HS256"}
    let payload = good.split('.').nth(1).unwrap();
    check(&format!("eyJhbGciOiJub25lIn0.{payload}."), TokenError::Algorithm("none".to_owned()));
    check(&format!("eyJhbGciOiJIUzI1NiJ9.{payload}.AAAA"), TokenError::Algorithm("HS256".to_owned()));
    for odd in ["", ".", "..", "a.b", "a.b.c", "null.null.null", &"x".repeat(1000)] {
        check(odd, TokenError::NotAJwt);
    }
    check(&"x".repeat(100_000), TokenError::TooLarge(100_000));
}

#[test]
fn rsa_keys_verify_tokens_of_kubernetes() {
    // The API server signs with RS256; the signature is made here with the same primitives.
    let key = PrivateKey::generate(KeyKind::Rsa2048).unwrap();
    let encode = |bytes: &[u8]| {
        use base64::Engine;
        base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(bytes)
    };
    let (n, e) = rsa_parts(key.public_key_bytes());
    let set = json!({"keys": [{"kty": "oct", "k": "AAAA"}, {"kty": "RSA", "n": encode(&n), "e": encode(&e)}]});
    let keys = KeySet::parse(&set.to_string()).unwrap();
    let signed = format!("{}.{}", encode(br#"{"alg":"RS256"}"#), encode(claims().to_string().as_bytes()));
    let token = format!("{signed}.{}", encode(&key.sign(signed.as_bytes()).unwrap()));
    assert!(keys.verify(&token, &rules(), NOW).is_ok());
    let small = json!({"keys": [{"kty": "RSA", "n": encode(&n[..128]), "e": encode(&e)}]});
    assert!(KeySet::parse(&small.to_string()).is_err(), "1024 bits");
}

/// Modulus and exponent of an RSAPublicKey.
fn rsa_parts(der: &[u8]) -> (Vec<u8>, Vec<u8>) {
    use x509_parser::asn1_rs::{FromDer, Integer, Sequence};
    let (_, parts) = Sequence::from_der(der).unwrap();
    let (rest, n) = Integer::from_der(&parts.content).unwrap();
    let (_, e) = Integer::from_der(rest).unwrap();
    (n.as_ref().iter().copied().skip_while(|byte| *byte == 0).collect(), e.as_ref().to_vec())
}

#[test]
fn key_sets_without_a_usable_key_are_errors() {
    for bad in ["", "null", "[]", "{}", r#"{"keys": 1}"#, r#"{"keys": []}"#, r#"{"keys": [null, {"kty": "EC"}]}"#] {
        assert!(KeySet::parse(bad).is_err(), "{bad}");
    }
}

proptest! {
    /// Nothing panics, and a changed token is never accepted with other claims.
    #[test]
    fn modified_tokens_are_refused(at in 0usize..500, with in "[A-Za-z0-9_.-]", text in "\\PC{0,300}") {
        let key = key();
        let keys = KeySet::parse(&token::key_set(&key, "one").unwrap()).unwrap();
        let good = token::sign(&key, "one", &claims()).unwrap();
        let at = at % good.len();
        let bad = format!("{}{with}{}", &good[..at], &good[at + 1..]);
        if bad != good {
            prop_assert!(keys.verify(&bad, &rules(), NOW).is_err());
        }
        prop_assert!(keys.verify(&text, &rules(), NOW).is_err());
        let _ = KeySet::parse(&text);
        let _ = token::unverified_expiry(&text);
    }
}
