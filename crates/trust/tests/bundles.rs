//! Bundles of SPIFFE bundle endpoints, good and bad ones.

#![allow(clippy::unwrap_used)]

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use std::time::Duration;
use trust::authority::{LeafLifetimes, SigningAuthority};
use trust::csr::{self, CertificateRequest};
use trust::issue::SubjectName;
use trust::key::{KeyKind, PrivateKey};
use trust::spiffe_bundle::{SpiffeBundleError, roots};

const NOW: i64 = 1_800_000_000;

fn root(serial: u8) -> SigningAuthority {
    let key = PrivateKey::generate(KeyKind::P256).unwrap();
    SigningAuthority::new_root("far.example", key, Duration::from_secs(3600), NOW, &[serial; 16]).unwrap()
}

fn key(usage: &str, certificates: &[&[u8]]) -> Value {
    let encoded: Vec<String> = certificates.iter().map(|der| BASE64_STANDARD.encode(der)).collect();
    json!({"kty": "EC", "use": usage, "x5c": encoded})
}

#[test]
fn only_roots_of_certificates_are_read() {
    let (one, two) = (root(1), root(2));
    let (first, second) = (one.certificate(), two.certificate());
    let bundle = json!({"spiffe_sequence": 1, "spiffe_refresh_hint": 300, "keys": [
        key("jwt-svid", &[]), key("x509-svid", &[first.der()]), key("x509-svid", &[second.der()]),
        key("x509-svid", &[first.der()]),
    ]});
    let found = roots(&bundle.to_string()).unwrap();
    assert_eq!(found.roots(), [first.clone(), second.clone()], "without duplicates");
}

#[test]
fn unusable_bundles_are_refused() {
    let (one, two) = (root(1), root(2));
    let (first, second) = (one.certificate().der(), two.certificate().der());
    let names = [SubjectName::of_text("spiffe://far.example/ns/a/sa/b")];
    let request = csr::request(&PrivateKey::generate(KeyKind::P256).unwrap(), &names).unwrap();
    let request = CertificateRequest::from_pem(&request).unwrap();
    let leaf = one.issue(&request, &names, 0, LeafLifetimes::default(), NOW, [3; 16]).unwrap();
    for (keys, expected) in [
        (json!(null), SpiffeBundleError::Malformed),
        (json!("x"), SpiffeBundleError::Malformed),
        (json!([]), SpiffeBundleError::Empty),
        (json!([key("jwt-svid", &[first])]), SpiffeBundleError::Empty),
        (json!([key("x509-svid", &[first, second])]), SpiffeBundleError::Certificates(0, 2)),
        (json!([key("x509-svid", &[])]), SpiffeBundleError::Certificates(0, 0)),
        (json!([key("x509-svid", &[first]), {"use": "x509-svid", "x5c": [7]}]), SpiffeBundleError::Certificate(1)),
        (json!([key("x509-svid", &[b"none"])]), SpiffeBundleError::Certificate(0)),
        (json!([key("x509-svid", &[leaf.certificate.der()])]), SpiffeBundleError::NoCa(0)),
        (json!(vec![key("x509-svid", &[first]); 101]), SpiffeBundleError::TooMany),
    ] {
        assert_eq!(roots(&json!({"keys": keys}).to_string()), Err(expected));
    }
    assert_eq!(roots("[".repeat(100_000).as_str()), Err(SpiffeBundleError::Malformed));
}
