//! Every row was tried with Envoy 1.40; the result here must be the same.

use serde_json::{Value, json};

use super::check;

const P256: [&str; 2] = ["_K1RmSiNO7OHQVpTf35PCjgSAHfARnwMqnX6jKcjZdU", "LDJav2Wopi6TaV34Kkg-XjKC-zjpJ6d-JbrQz-RpZFU"];

fn rsa() -> Value {
    // The shortest modulus that Envoy accepts.
    json!({"kty": "RSA", "e": "AQAB", "n": modulus(512, 1)})
}

fn ec() -> Value {
    json!({"kty": "EC", "crv": "P-256", "x": P256[0], "y": P256[1]})
}

fn p384() -> Value {
    let x = "taikGUcmE0LFLzXcrkWnplOjFySoqEKTqRY3-CdhLQWp0PCZ8ZhjWMJcZBZTey6o";
    let y = "mGvyksUet2j2IVOPghEV96G3jAmqp7-_R37-yqEeKle6qvbysjSLrtxi4DFl9dUV";
    json!({"kty": "EC", "crv": "P-384", "x": x, "y": y})
}

fn p521() -> Value {
    let x = "AMMvlAWZIDM6_migXvXxvDPkt4xzDn0s-f7uswAdsyzPToNimJ02edL4jNfDjtOcyZoUef1XlC0XK26uOW5FWcww";
    let y = "AAsOH6BPr4aAR5z0cgvJhrNURpzMJyxUpe1RcN8KKSb9N54B6RPMfh_jFTQv7yF2OTL4BGlieogelJ5XVJ5-uKC0";
    json!({"kty": "EC", "crv": "P-521", "x": x, "y": y})
}

fn ed25519() -> Value {
    json!({"kty": "OKP", "crv": "Ed25519", "x": "JgjrhntduOQQTLY_bxFHr59DGCpnrC454mi_bQaImIs"})
}

fn secret() -> Value {
    json!({"kty": "oct", "k": "AAAA"})
}

/// The key with one field set, or removed if the value is null.
fn with(mut key: Value, field: &str, value: Value) -> Value {
    let map = key.as_object_mut().unwrap();
    if value.is_null() {
        map.remove(field)
    } else {
        map.insert(field.to_owned(), value)
    };
    key
}

fn is_usable(keys: &[Value]) -> bool {
    check(&json!({"keys": keys}).to_string()).is_ok()
}

fn base64(bytes: &[u8]) -> Value {
    use base64::Engine;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes).into()
}

fn modulus(bits: usize, last: u8) -> Value {
    let mut bytes = vec![0x5a; bits.div_ceil(8)];
    bytes[0] = 1 << ((bits - 1) % 8);
    *bytes.last_mut().unwrap() = last;
    base64(&bytes)
}

#[test]
fn valid_keys_are_accepted() {
    let rows = [
        rsa(),
        ec(),
        p384(),
        p521(),
        ed25519(),
        secret(),
        with(rsa(), "alg", json!("RS256")),
        with(rsa(), "alg", json!("PS512")),
        with(rsa(), "alg", json!("")),
        with(rsa(), "alg", json!(5)),
        with(rsa(), "use", json!("enc")),
        with(rsa(), "kid", json!(5)),
        with(rsa(), "e", json!("Aw")),
        with(rsa(), "n", modulus(513, 1)),
        with(rsa(), "n", modulus(16384, 1)),
        with(ec(), "crv", Value::Null),
        with(ec(), "crv", json!("")),
        with(ec(), "alg", json!("ES256")),
        with(ec(), "alg", json!("")),
        with(with(p384(), "crv", Value::Null), "alg", json!("ES384")),
        with(p521(), "alg", json!("ES512")),
        with(ec(), "x", json!(format!("{}=", P256[0]))),
        with(ec(), "x", json!(format!("{}.", P256[0]))),
        with(ec(), "x", json!(format!("  {}\n{}", &P256[0][..9], &P256[0][9..]))),
        with(ed25519(), "alg", json!("EdDSA")),
        with(ed25519(), "alg", json!(5)),
        with(secret(), "alg", json!("HS256")),
        with(secret(), "k", json!("AAA=")),
    ];
    for key in rows {
        assert_eq!(check(&json!({"keys": [key]}).to_string()), Ok(vec![]), "{key}");
    }
}

#[test]
fn invalid_keys_are_rejected() {
    let null = Value::Null;
    let rows = [
        with(rsa(), "kty", null.clone()),
        with(rsa(), "kty", json!(7)),
        with(rsa(), "kty", json!("rsa")),
        with(rsa(), "n", null.clone()),
        with(rsa(), "n", json!("!!")),
        with(rsa(), "n", json!("")),
        with(rsa(), "n", json!("AQAB")),
        with(rsa(), "n", modulus(511, 1)),
        with(rsa(), "n", modulus(16385, 1)),
        with(rsa(), "n", modulus(2048, 2)),
        with(rsa(), "e", null.clone()),
        with(rsa(), "e", json!("")),
        with(rsa(), "e", json!("AQAB==")),
        with(rsa(), "e", json!("BQ")),
        with(rsa(), "e", json!("Ag")),
        with(rsa(), "e", json!("AQ")),
        with(rsa(), "alg", json!("ES256")),
        with(rsa(), "alg", json!("R")),
        with(ec(), "crv", json!("P-384")),
        with(ec(), "crv", json!("secp256k1")),
        with(ec(), "crv", json!(5)),
        with(ec(), "alg", json!("ES384")),
        with(ec(), "alg", json!("ES999")),
        with(ec(), "alg", json!("RS256")),
        with(with(ec(), "crv", null.clone()), "alg", json!("ES384")),
        with(with(ec(), "crv", null.clone()), "alg", json!("ES")),
        with(ec(), "x", null.clone()),
        with(ec(), "y", null.clone()),
        with(ec(), "x", json!(5)),
        with(ec(), "x", json!("")),
        with(ec(), "x", json!(&P256[0][..20])),
        with(ec(), "x", base64(&[1; 32])),
        with(ec(), "y", base64(&[255; 32])),
        with(with(ec(), "x", base64(&[0; 32])), "y", base64(&[0; 32])),
        with(ed25519(), "x", null.clone()),
        with(ed25519(), "x", json!("!")),
        with(ed25519(), "x", json!("AAAA")),
        with(ed25519(), "x", base64(&[1; 33])),
        with(ed25519(), "crv", null.clone()),
        with(ed25519(), "crv", json!("X25519")),
        with(ed25519(), "alg", json!("ES256")),
        with(secret(), "k", null.clone()),
        with(secret(), "k", json!("")),
        with(secret(), "k", json!(" ")),
        with(secret(), "k", json!("A")),
        with(secret(), "k", json!("====")),
        with(secret(), "k", json!("AA==AA==")),
        with(secret(), "alg", json!("RS256")),
        json!("a"),
    ];
    for key in rows {
        assert!(!is_usable(std::slice::from_ref(&key)), "{key}");
        // Next to a good key only the bad one is unusable.
        let both = check(&json!({"keys": [key, ec()]}).to_string());
        assert!(both.as_ref().is_ok_and(|mistakes| mistakes.len() == 1), "{key}: {both:?}");
    }
}

#[test]
fn documents_are_as_strict_as_envoys() {
    let key = rsa();
    let nested = |depth: usize| format!("{{\"keys\":[{key}],\"z\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    for good in [format!(" \n{{\"keys\":[{key}]}}\n"), format!("{{\"keys\":[{key}],\"a\":\"\\u0000\"}}"), nested(99)] {
        assert_eq!(check(&good), Ok(vec![]), "{good}");
    }
    let bad = [
        "x".to_owned(),
        format!("[{key}]"),
        key.to_string(),
        "{\"keys\":{}}".to_owned(),
        "{\"keys\":null}".to_owned(),
        "{\"keys\":[]}".to_owned(),
        format!("{{\"Keys\":[{key}]}}"),
        format!("{{\"keys\":[{key}]}}x"),
        format!("\u{feff}{{\"keys\":[{key}]}}"),
        format!("{{\"keys\":[],\"keys\":[{key}]}}"),
        format!("{{\"keys\":[{key}],\"a\":1,\"a\":2}}"),
        format!("{{\"keys\":[{key}],\"a\":1e999}}"),
        format!("{{\"keys\":[{key}],\"a\":\"\\ud800\"}}"),
        nested(101),
    ];
    for text in bad {
        assert!(check(&text).is_err(), "{text}");
    }
}
