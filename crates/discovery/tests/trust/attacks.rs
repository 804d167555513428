//! Hostile callers: each gets a refusal, and an honest caller is served afterwards.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, SanType};
use serde_json::json;
use testkit::ca_client::CaClient;
use testkit::certificates::Authority;
use testkit::{client, wait};
use tonic::Code;
use trust::authority::{AuthorityTexts, SigningAuthority};
use trust::certificate::Certificate;
use trust::csr;
use trust::issue::SubjectName;
use trust::key::{KeyFormat, KeyKind, PrivateKey, random_serial};

use crate::fixture::{FRONT, Mesh, assert_refused, now};

const DAY: i64 = 24 * 3600;

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
    let mut attempts = vec![("a foreign CA", foreign), ("a leaf used as a CA", forged)];
    // Signed by the CA of the mesh, as a stolen or another mesh's intermediate could.
    for (what, uris, days_ago) in [
        ("another trust domain", &["spiffe://other/ns/shop/sa/front"][..], 0),
        ("no SPIFFE identity", &["https://cluster.local/ns/shop/sa/front"], 0),
        ("several identities", &[FRONT, "spiffe://cluster.local/ns/bank/sa/admin"], 0),
        ("a host name alone", &["front.shop"], 0),
        ("an expired certificate", &[FRONT], 2),
        ("a certificate of the future", &[FRONT], -2),
    ] {
        attempts.push((what, mesh_certificate(&mesh, uris, now() - days_ago * DAY)));
    }
    for (what, certificate) in attempts {
        let client = CaClient::new(mesh.secure, &roots, Some(&certificate), Some(&mesh.token("front")));
        let refused = client.certificate(FRONT, 0).await;
        assert!(refused.as_ref().is_err_and(|(code, _)| *code == -1), "{what}: {refused:?}");
    }
    mesh.serves_an_honest_caller().await;
}

/// A certificate with these URIs for a day, signed with the key of the mesh's root.
fn mesh_certificate(mesh: &Mesh, uris: &[&str], begin: i64) -> testkit::certificates::Certificate {
    let (root, key) = (std::fs::read_to_string(mesh.path("ca/root-cert.pem")).unwrap(), root_key(mesh));
    let texts = AuthorityTexts { certificate: &root, key: &key, chain: "", roots: &root };
    let authority = SigningAuthority::from_texts_at_any_time(texts).unwrap();
    let name = |text: &&str| match text.contains("://") {
        true => SubjectName::Uri((*text).to_owned()),
        false => SubjectName::Dns((*text).to_owned()),
    };
    let names: Vec<SubjectName> = uris.iter().map(name).collect();
    let life = Duration::from_secs(DAY.unsigned_abs());
    let (issued, key) = authority.issue_with_key(&names, life, begin, random_serial().unwrap()).unwrap();
    let key = key.to_pem(KeyFormat::Pkcs8).unwrap().to_string();
    testkit::certificates::Certificate { chain: issued.certificate.to_pem(), key }
}

fn root_key(mesh: &Mesh) -> String {
    let stored = std::fs::read_to_string(mesh.path("ca/istio-ca-secret.json")).unwrap();
    let stored: serde_json::Value = serde_json::from_str(&stored).unwrap();
    stored["ca-key.pem"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn keys_appear_in_no_output() {
    let mut mesh = Mesh::start(&[("PILOTAGE_LOG", "debug"), ("PILOTAGE_ROOT_ROTATION_STEP", "1s")]).await;
    let own = mesh.serves_an_honest_caller().await;
    // A second root, whose key is generated later.
    let first = root_key(&mesh);
    let request = http::Request::post("/debug/trustz?rotate=true").header("host", "localhost").body(String::new());
    client::send(mesh.server.monitoring(), request.unwrap()).await.unwrap();
    let second = wait::until("a second root that signs", async || match root_key(&mesh) {
        key if key != first => Ok(key),
        _ => Err("the first one".to_owned()),
    })
    .await;
    mesh.serves_an_honest_caller().await;
    let token = mesh.token("front");
    let mut output = mesh.server.process().output();
    assert!(output.contains("issued a certificate"));
    let pages: Vec<String> = serde_json::from_str(&mesh.page("/debug/list").await).unwrap();
    let pages = pages.iter().map(|name| format!("/debug/{name}?pretty&proxyID=front.shop"));
    for page in pages.chain(["/metrics", "/version", "/debug", "/api/v1/objects"].map(str::to_owned)) {
        output += &mesh.page(&page).await;
    }
    let mut secrets = vec!["PRIVATE KEY".to_owned(), token.rsplit('.').next().unwrap().to_owned()];
    for key in [&first, &second, &own.key, &mesh.issuer_key()] {
        let lines: Vec<&str> = key.lines().filter(|line| !line.starts_with("-----")).collect();
        assert!(lines.len() >= 2, "a key");
        secrets.extend(lines.into_iter().map(str::to_owned));
    }
    for secret in &secrets {
        assert!(!output.contains(secret), "a secret was written");
    }
    only_private_files_have_keys(&mesh, &secrets);
}

/// Keys are in files that only their owner reads.
fn only_private_files_have_keys(mesh: &Mesh, secrets: &[String]) {
    let (mut folders, mut with_keys) = (vec![mesh.folder.path().to_owned()], 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let content = String::from_utf8_lossy(&std::fs::read(&path).unwrap_or_default()).into_owned();
            if secrets.iter().any(|secret| content.contains(secret)) {
                let mode = std::fs::metadata(&path).unwrap().permissions().mode();
                assert_eq!(mode & 0o077, 0, "{} has a key and mode {mode:o}", path.display());
                with_keys += 1;
            }
        }
    }
    assert!(with_keys > 0, "the root is stored");
}
