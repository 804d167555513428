//! Real signed tokens (ES256) and the key sets that verify them.

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

/// A token issuer.
pub(super) struct Issuer {
    key: EcdsaKeyPair,
}

impl Issuer {
    pub(super) fn new() -> Issuer {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key can be made");
        Issuer { key }
    }

    /// The public half as a JSON Web Key Set.
    pub(super) fn key_set(&self) -> String {
        // An uncompressed point: one byte for the form, then two coordinates.
        let (x, y) = self.key.public_key().as_ref()[1..].split_at(32);
        let key = json!({"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": "first", "x": text(x), "y": text(y)});
        json!({"keys": [key]}).to_string()
    }

    pub(super) fn token(&self, claims: &Value) -> String {
        self.token_of_key("first", claims)
    }

    pub(super) fn token_of_key(&self, kid: &str, claims: &Value) -> String {
        let signed = unsigned(&json!({"alg": "ES256", "typ": "JWT", "kid": kid}), claims);
        let signature = self.key.sign(&SystemRandom::new(), signed.as_bytes()).expect("the key signs");
        format!("{signed}.{}", text(signature.as_ref()))
    }

    /// A token that claims to be signed with a shared secret, which is our public key.
    pub(super) fn confused_token(&self, claims: &Value) -> String {
        let signed = unsigned(&json!({"alg": "HS256", "typ": "JWT", "kid": "first"}), claims);
        let secret = hmac::Key::new(hmac::HMAC_SHA256, self.key.public_key().as_ref());
        let signature = hmac::sign(&secret, signed.as_bytes());
        format!("{signed}.{}", text(signature.as_ref()))
    }
}

/// A token with `alg: none`.
pub(super) fn token_without_signature(claims: &Value) -> String {
    format!("{}.", unsigned(&json!({"alg": "none", "typ": "JWT"}), claims))
}

/// A token whose signature is valid for every key of small order: R is the neutral point and S is zero.
pub(super) fn token_of_weak_key(claims: &Value) -> String {
    let mut signature = [0; 64];
    signature[0] = 1;
    format!("{}.{}", unsigned(&json!({"alg": "EdDSA", "typ": "JWT"}), claims), text(&signature))
}

/// The same signature under other claims.
pub(super) fn with_claims(token: &str, claims: &Value) -> String {
    let mut parts: Vec<&str> = token.split('.').collect();
    let body = text(claims.to_string().as_bytes());
    parts[1] = &body;
    parts.join(".")
}

/// Unix time in this many seconds.
pub(super) fn seconds(from_now: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    i64::try_from(now.as_secs()).expect("not that far in the future") + from_now
}

fn unsigned(header: &Value, claims: &Value) -> String {
    format!("{}.{}", text(header.to_string().as_bytes()), text(claims.to_string().as_bytes()))
}

fn text(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
