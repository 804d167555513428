//! Hostile callers: each gets a refusal, and an honest caller is served afterwards.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, SanType};
use serde_json::json;
use testkit::ca_client::CaClient;
use testkit::certificates::Authority;
use tonic::Code;
use trust::certificate::Certificate;
use trust::csr;
use trust::key::{KeyKind, PrivateKey};

use crate::fixture::{FRONT, Mesh, assert_refused, now};

fn good_csr() -> String {
    csr::request(&PrivateKey::generate(KeyKind::P256).unwrap(), &[]).unwrap()
}

#[tokio::test]
async fn hostile_requests_never_get_another_identity() {
    let mesh = Mesh::start(&[]).await;
    let client = mesh.client().await;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "spiffe://cluster.local/ns/bank/sa/admin");
    let foreign = ["spiffe://cluster.local/ns/bank/sa/admin", "spiffe://other/ns/shop/sa/front"];
    params.subject_alt_names = foreign.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())).collect();
    let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    for request in [request.clone(), good_csr(), request + &good_csr()] {
        for seconds in [0, -1, i64::MIN, 60] {
            let reply = client.sign(&request, seconds).await.unwrap();
            let leaf = &Certificate::all_from_pem(&reply[0]).unwrap()[0];
            assert_eq!((&leaf.uris[..], leaf.is_ca), (&[FRONT.to_owned()][..], false));
            assert!(leaf.not_after <= now() + 24 * 3600);
        }
    }
    mesh.serves_an_honest_caller().await;
}

#[tokio::test]
async fn unusable_requests_are_refused() {
    let mesh = Mesh::start(&[]).await;
    let client = mesh.client().await;
    let certificate = Authority::new().root();
    let mut broken = good_csr().into_bytes();
    let middle = broken.len() - 60;
    broken[middle] = if broken[middle] == b'A' { b'B' } else { b'A' };
    let broken = String::from_utf8(broken).unwrap();
    for (what, request, code) in [
        ("nothing", String::new(), Code::InvalidArgument),
        ("NUL bytes", "\0".repeat(1000), Code::InvalidArgument),
        ("a certificate", certificate, Code::InvalidArgument),
        ("a broken signature", broken, Code::InvalidArgument),
        ("a weak key", include_str!("../../../trust/tests/csr/rsa1024.pem").to_owned(), Code::InvalidArgument),
        ("an odd curve", include_str!("../../../trust/tests/csr/secp256k1.pem").to_owned(), Code::InvalidArgument),
        ("70 kB", good_csr() + &"\n".repeat(70_000), Code::InvalidArgument),
        ("6 MB", good_csr() + &"\n".repeat(6 << 20), Code::ResourceExhausted),
    ] {
        assert_refused(what, client.sign(&request, 0).await, code);
    }
    for seconds in [90 * 24 * 3600 + 1, i64::MAX, 1 << 60] {
        let refused = client.sign(&good_csr(), seconds).await;
        assert!(
            refused.as_ref().is_err_and(
                |(_, message)| message.contains("max%20allowed%20TTL") || message.contains("max allowed TTL")
            ),
            "{refused:?}"
        );
        assert_refused("a long lifetime", refused, Code::InvalidArgument);
    }
    for (what, message) in [("no message", &[][..]), ("no protobuf", &[0xff; 100][..])] {
        assert_refused(what, client.call(message).await, Code::InvalidArgument);
    }
    mesh.serves_an_honest_caller().await;
}

#[tokio::test]
async fn bad_tokens_are_refused() {
    let mesh = Mesh::start(&[]).await;
    let roots = mesh.roots().await;
    let good = mesh.token("front");
    let (head, signature) = good.rsplit_once('.').unwrap();
    let payload = head.split_once('.').unwrap().1;
    let mut modified = signature.to_owned();
    modified.replace_range(0..1, if modified.starts_with('A') { "B" } else { "A" });
    let foreign = PrivateKey::generate(KeyKind::P256).unwrap();
    let claims = json!({"iss": "https://issuer.test", "aud": ["istio-ca"], "exp": now() + 60,
        "sub": "system:serviceaccount:shop:front"});
    for (what, token) in [
        ("expired", mesh.token_with("front", json!({"exp": now() - 1}))),
        ("not yet valid", mesh.token_with("front", json!({"nbf": now() + 600}))),
        ("other audience", mesh.token_with("front", json!({"aud": ["kubernetes"]}))),
        ("other issuer", mesh.token_with("front", json!({"iss": "https://other"}))),
        ("of an administrator", mesh.token_with("front", json!({"sub": "admin"}))),
        ("three parts", mesh.token_with("front", json!({"sub": "system:serviceaccount:shop"}))),
        ("a slash", mesh.token_with("front", json!({"sub": "system:serviceaccount:shop/../bank:x"}))),
        ("null subject", mesh.token_with("front", json!({"sub": null}))),
        ("unsigned", format!("eyJhbGciOiJub25lIn0.{payload}.")),
        ("modified", format!("{head}.{modified}")),
        ("another key", trust::token::sign(&foreign, "test", &claims).unwrap()),
        ("payload null", trust::token::sign(&foreign, "test", &serde_json::Value::Null).unwrap()),
        ("no token", "x".to_owned()),
        ("long", "x".repeat(12_000)),
    ] {
        let client = CaClient::new(mesh.secure, &roots, None, Some(&token));
        assert_refused(what, client.certificate(FRONT, 0).await, Code::Unauthenticated);
    }
    let huge = CaClient::new(mesh.secure, &roots, None, Some(&"x".repeat(100_000)));
    assert!(huge.certificate(FRONT, 0).await.is_err());
    let nothing = CaClient::new(mesh.secure, &roots, None, None);
    assert_refused("no credentials", nothing.certificate(FRONT, 0).await, Code::Unauthenticated);
    let mut lower = CaClient::new(mesh.secure, &roots, None, None);
    lower.headers = vec![("authorization".to_owned(), format!("bearer {good}"))];
    assert_refused("bearer in lower case", lower.certificate(FRONT, 0).await, Code::Unauthenticated);
    assert_eq!(mesh.metric("citadel_server_authentication_failure_count").await, 16.0);
    mesh.serves_an_honest_caller().await;
}

#[tokio::test]
async fn foreign_certificates_fail_the_handshake() {
    let mesh = Mesh::start(&[]).await;
    let roots = mesh.roots().await;
    let own = mesh.serves_an_honest_caller().await;
    let foreign = Authority::new().workload(FRONT);
    // A leaf used as a CA: rcgen signs with the workload's key, in its name.
    let key = KeyPair::from_pem(&own.key).unwrap();
    let mut issuer = CertificateParams::default();
    issuer.distinguished_name = rcgen::DistinguishedName::new();
    let issuer = rcgen::Issuer::new(issuer, key);
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI("spiffe://cluster.local/ns/bank/sa/admin".try_into().unwrap())];
    let forged_key = KeyPair::generate().unwrap();
    let forged = params.signed_by(&forged_key, &issuer).unwrap();
    let forged =
        testkit::certificates::Certificate { chain: forged.pem() + &own.chain, key: forged_key.serialize_pem() };
    for (what, certificate) in [("a foreign CA", foreign), ("a leaf used as a CA", forged)] {
        let client = CaClient::new(mesh.secure, &roots, Some(&certificate), Some(&mesh.token("front")));
        let refused = client.certificate(FRONT, 0).await;
        assert!(refused.as_ref().is_err_and(|(code, _)| *code == -1), "{what}: {refused:?}");
    }
    mesh.serves_an_honest_caller().await;
}

#[tokio::test]
async fn keys_appear_in_no_output() {
    let mut mesh = Mesh::start(&[("PILOTAGE_LOG", "debug")]).await;
    mesh.serves_an_honest_caller().await;
    let stored = std::fs::read_to_string(mesh.path("ca/istio-ca-secret.json")).unwrap();
    let stored: serde_json::Value = serde_json::from_str(&stored).unwrap();
    let key = stored["ca-key.pem"].as_str().unwrap();
    let lines: Vec<&str> = key.lines().filter(|line| !line.starts_with("-----")).collect();
    let token = mesh.token("front");
    let mut output = mesh.server.process().output();
    for page in ["/metrics", "/debug/trustz?pretty", "/debug/configz", "/debug/problems", "/debug/syncz"] {
        output += &mesh.page(page).await;
    }
    assert!(lines.len() >= 2 && output.contains("issued a certificate"));
    for secret in lines.iter().copied().chain(["PRIVATE KEY", token.as_str()]) {
        assert!(!output.contains(secret), "a secret was written");
    }
}
