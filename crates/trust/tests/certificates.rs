//! Issuing and checking: what the CA signs is what the caller may have, and other libraries accept it. Keys, requests and
//! authorities of `rcgen` are the other side.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use proptest::prelude::*;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose,
    SanType,
};
use trust::authority::{AuthorityError, AuthorityTexts, IssueError, LeafLifetimes, SigningAuthority};
use trust::bundle::RootBundle;
use trust::certificate::Certificate;
use trust::csr::{self, CertificateRequest, CsrError};
use trust::identity::SpiffeId;
use trust::issue::SubjectName;
use trust::key::{KeyKind, PrivateKey};
use trust::pem;
use x509_parser::prelude::{FromDer, ParsedExtension, X509Certificate};

const NOW: i64 = 1_800_000_000;
const DAY: u64 = 24 * 3600;

fn root(kind: KeyKind) -> SigningAuthority {
    let key = PrivateKey::generate(kind).unwrap();
    SigningAuthority::new_root("cluster.local", key, Duration::from_secs(3650 * DAY), NOW, &[1; 16]).unwrap()
}

fn identity() -> SubjectName {
    SubjectName::from(&SpiffeId::new("cluster.local", "shop", "front").unwrap())
}

fn own_request(kind: KeyKind, names: &[SubjectName]) -> String {
    csr::request(&PrivateKey::generate(kind).unwrap(), names).unwrap()
}

fn issue(ca: &SigningAuthority, request: &str, requested: i64) -> Result<Certificate, IssueError> {
    let request = CertificateRequest::from_pem(request).unwrap();
    let issued = ca.issue(&request, &[identity()], requested, LeafLifetimes::default(), NOW, [7; 16])?;
    Ok(issued.certificate)
}

#[test]
fn a_leaf_has_upstreams_form() {
    for kind in [KeyKind::P256, KeyKind::P384, KeyKind::Rsa2048] {
        let ca = root(kind);
        let leaf = issue(&ca, &own_request(KeyKind::P256, &[identity()]), 0).unwrap();
        assert!(leaf.is_signed_by(ca.certificate()) && !leaf.is_ca);
        assert_eq!(leaf.uris, ["spiffe://cluster.local/ns/shop/sa/front"]);
        assert_eq!((leaf.not_before, leaf.not_after), (NOW - 120, NOW + DAY as i64));
        let (_, parsed) = X509Certificate::from_der(leaf.der()).unwrap();
        assert_eq!(parsed.subject().iter().count(), 0, "the subject is empty");
        assert_eq!(parsed.raw_serial().len(), 16);
        let usage = parsed.key_usage().unwrap().unwrap();
        assert!(usage.critical && usage.value.digital_signature() && usage.value.key_encipherment());
        assert!(!usage.value.key_cert_sign());
        let extended = parsed.extended_key_usage().unwrap().unwrap();
        assert!(extended.value.server_auth && extended.value.client_auth);
        assert!(parsed.subject_alternative_name().unwrap().unwrap().critical);
        let has_authority = parsed
            .extensions()
            .iter()
            .any(|extension| matches!(extension.parsed_extension(), ParsedExtension::AuthorityKeyIdentifier(_)));
        assert!(has_authority);
    }
}

#[test]
fn a_root_has_upstreams_form() {
    let ca = root(KeyKind::Rsa2048);
    let (_, parsed) = X509Certificate::from_der(ca.certificate().der()).unwrap();
    assert_eq!(parsed.subject().to_string(), "O=cluster.local");
    assert!(parsed.is_ca() && parsed.key_usage().unwrap().unwrap().value.key_cert_sign());
    assert_eq!(ca.certificate().not_before, NOW - 120);
    assert_eq!(ca.certificate().organization().as_deref(), Some("cluster.local"));
    assert!(ca.certificate().is_self_issued() && ca.certificate().is_signed_by(ca.certificate()));
}

#[test]
fn the_response_is_leaf_intermediates_and_all_roots() {
    let ca = root(KeyKind::P256);
    let other = root(KeyKind::P256);
    let both = ca.roots().with(other.roots());
    let ca = ca.with_roots(both).unwrap();
    let request = CertificateRequest::from_pem(&own_request(KeyKind::P256, &[])).unwrap();
    let issued = ca.issue(&request, &[identity()], 60, LeafLifetimes::default(), NOW, [7; 16]).unwrap();
    assert_eq!(issued.chain.len(), 2);
    assert!(issued.chain.iter().all(|text| text.ends_with("-----END CERTIFICATE-----\n")));
    assert_eq!(RootBundle::from_pem(&issued.chain[1]).unwrap().roots().len(), 2);
}

/// A request made by another library, with these parameters.
fn foreign_request(params: &CertificateParams, key: &KeyPair) -> String {
    params.serialize_request(key).unwrap().pem().unwrap()
}

#[test]
fn names_and_extensions_of_a_request_are_ignored() {
    let ca = root(KeyKind::P256);
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.subject_alt_names = vec![
        SanType::URI("spiffe://cluster.local/ns/bank/sa/admin".try_into().unwrap()),
        SanType::DnsName("istiod.istio-system.svc".try_into().unwrap()),
        SanType::IpAddress("10.0.0.1".parse().unwrap()),
    ];
    let leaf = issue(&ca, &foreign_request(&params, &key), 0).unwrap();
    assert_eq!(leaf.uris, ["spiffe://cluster.local/ns/shop/sa/front"]);
    assert!(leaf.dns_names.is_empty() && !leaf.is_ca);
}

#[test]
fn a_common_name_becomes_the_first_identity() {
    let ca = root(KeyKind::P256);
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "spiffe://cluster.local/ns/bank/sa/admin");
    let leaf = issue(&ca, &foreign_request(&params, &key), 0).unwrap();
    let (_, parsed) = X509Certificate::from_der(leaf.der()).unwrap();
    assert_eq!(parsed.subject().to_string(), "CN=spiffe://cluster.local/ns/shop/sa/front");
    let long = SpiffeId::new("cluster.local", &"n".repeat(63), "front").unwrap();
    let request = CertificateRequest::from_pem(&foreign_request(&params, &key)).unwrap();
    let issued = ca.issue(&request, &[(&long).into()], 0, LeafLifetimes::default(), NOW, [7; 16]).unwrap();
    let (_, parsed) = X509Certificate::from_der(issued.certificate.der()).unwrap();
    assert_eq!(parsed.subject().to_string(), "", "longer than X.509 allows");
}

/// The content of a request that a signer copies.
#[test]
fn a_request_for_another_signer_has_one_identity_and_nothing_else() {
    let own = "spiffe://cluster.local/ns/shop/sa/front";
    let names = [own.to_owned(), "spiffe://cluster.local/ns/shop/sa/second".to_owned()];
    let key = KeyPair::generate().unwrap();
    let check = |change: &dyn Fn(&mut CertificateParams)| {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![SanType::URI(own.try_into().unwrap())];
        change(&mut params);
        csr::check_content(&foreign_request(&params, &key), &names)
    };
    assert_eq!(csr::check_content(&own_request(KeyKind::P256, &[identity()]), &names), Ok(()));
    assert_eq!(check(&|_| {}), Ok(()));
    let refused = |change: &dyn Fn(&mut CertificateParams)| {
        assert!(matches!(check(change), Err(CsrError::Content(_))), "{:?}", check(change));
    };
    refused(&|params| params.distinguished_name.push(DnType::CommonName, "admin"));
    refused(&|params| params.distinguished_name.push(DnType::OrganizationName, "system:masters"));
    refused(&|params| params.subject_alt_names.clear());
    refused(&|params| params.subject_alt_names.push(SanType::URI(names[1].as_str().try_into().unwrap())));
    refused(&|params| params.subject_alt_names = vec![SanType::URI("spiffe://x/ns/a/sa/b".try_into().unwrap())]);
    refused(&|params| params.subject_alt_names.push(SanType::DnsName("istiod".try_into().unwrap())));
    refused(&|params| params.subject_alt_names.push(SanType::IpAddress("10.0.0.1".parse().unwrap())));
    refused(&|params| params.key_usages = vec![KeyUsagePurpose::KeyCertSign]);
}

/// RSA with 1024 bits and secp256k1 were made with `openssl req -new -newkey … -nodes`.
const RSA_1024: &str = include_str!("csr/rsa1024.pem");
const SECP256K1: &str = include_str!("csr/secp256k1.pem");
const ED25519: &str = include_str!("csr/ed25519.pem");

#[test]
fn unusable_requests_are_refused() {
    let good = own_request(KeyKind::P256, &[identity()]);
    assert!(CertificateRequest::from_pem(&good).is_ok());
    let content = pem::first_block(&good).unwrap().content;
    let mut broken = content.to_vec();
    *broken.last_mut().unwrap() ^= 1;
    let mut longer = content.to_vec();
    longer.push(0);
    let certificate = root(KeyKind::P256).certificate().to_pem();
    let encode = |bytes: &[u8]| pem::encode("CERTIFICATE REQUEST", bytes);
    for (what, text) in [
        ("nothing", String::new()),
        ("NUL bytes", "\0".repeat(100)),
        ("a certificate", certificate.clone()),
        ("a certificate that claims to be a request", certificate.replace("CERTIFICATE", "CERTIFICATE REQUEST")),
        ("a broken signature", encode(&broken)),
        ("bytes after the request", encode(&longer)),
        ("half of a request", encode(&content[..content.len() / 2])),
        ("RSA with 1024 bits", RSA_1024.to_owned()),
        ("an odd curve", SECP256K1.to_owned()),
        ("Ed25519", ED25519.to_owned()),
    ] {
        assert!(CertificateRequest::from_pem(&text).is_err(), "{what}");
    }
    let large = good.clone() + &"\n".repeat(csr::MAX_BYTES);
    assert_eq!(CertificateRequest::from_pem(&large), Err(CsrError::TooLarge(large.len())));
    let two = own_request(KeyKind::P384, &[]) + &good;
    assert_eq!(CertificateRequest::from_pem(&two), CertificateRequest::from_pem(&two[..two.len() - good.len()]));
}

#[test]
fn lifetimes_are_checked_and_end_with_the_issuer() {
    let ca = root(KeyKind::P256);
    let request = own_request(KeyKind::P256, &[]);
    for default in [0, -1, i64::MIN] {
        assert_eq!(issue(&ca, &request, default).unwrap().not_after, NOW + DAY as i64, "{default}");
    }
    assert_eq!(issue(&ca, &request, 90 * DAY as i64).unwrap().not_after, NOW + 90 * DAY as i64);
    for (above, shown) in [(90 * DAY as i64 + 1, "7776001s"), (i64::MAX, "9223372036854775807s")] {
        let refused = issue(&ca, &request, above).unwrap_err().to_string();
        assert_eq!(refused, format!("requested TTL {shown} is greater than the max allowed TTL 7776000s"));
    }
    let key = PrivateKey::generate(KeyKind::P256).unwrap();
    let short = SigningAuthority::new_root("td", key, Duration::from_secs(600), NOW, &[1; 16]).unwrap();
    assert_eq!(issue(&short, &request, 0).unwrap().not_after, NOW + 600);
    let late = CertificateRequest::from_pem(&request).unwrap();
    let late = short.issue(&late, &[identity()], 0, LeafLifetimes::default(), NOW + 601, [7; 16]);
    assert_eq!(late.unwrap_err(), IssueError::IssuerExpired);
}

/// Files of a plugged-in CA, made by another library: root, intermediate, and the intermediate's key.
fn plugged_in() -> (String, String, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // Names that a library could reorder or merge.
    for (kind, text) in [
        (DnType::OrganizationName, "Example \u{d6}"),
        (DnType::OrganizationalUnitName, "One"),
        (DnType::CommonName, "root"),
    ] {
        params.distinguished_name.push(kind, text);
    }
    let top = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.distinguished_name.push(DnType::CommonName, "intermediate");
    let key = KeyPair::generate().unwrap();
    let middle = params.signed_by(&key, &top).unwrap();
    (top.pem(), middle.pem(), key.serialize_pem())
}

#[test]
fn a_plugged_in_ca_is_verified_before_use() {
    let (root, middle, key) = plugged_in();
    let (foreign_root, foreign_middle, foreign_key) = plugged_in();
    let leaf = issue(&self::root(KeyKind::P256), &own_request(KeyKind::P256, &[]), 0).unwrap().to_pem();
    let load = |certificate, key, chain, roots| {
        SigningAuthority::from_texts(AuthorityTexts { certificate, key, chain, roots }, NOW)
    };
    let ca = load(&middle, &key, &middle, &root).unwrap();
    let request = CertificateRequest::from_pem(&own_request(KeyKind::P256, &[])).unwrap();
    let issued = ca.issue(&request, &[identity()], 0, LeafLifetimes::default(), NOW, [7; 16]).unwrap();
    assert_eq!((issued.chain.len(), &issued.chain[1], &issued.chain[2]), (3, &middle, &root));
    // The signing certificate is sent even if the chain file does not contain it.
    assert_eq!(load(&middle, &key, "", &root).unwrap().chain().len(), 1);
    let refused = |certificate, key, roots| load(certificate, key, "", roots).unwrap_err();
    assert_eq!(refused(&middle, &foreign_key, &root), AuthorityError::KeyMismatch);
    assert_eq!(refused(&middle, &key, &foreign_root), AuthorityError::NoPathToRoot);
    assert_eq!(refused(&foreign_middle, &foreign_key, &root), AuthorityError::NoPathToRoot);
    assert_eq!(refused(&leaf, &key, &root), AuthorityError::NotACa);
    for broken in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "text"] {
        assert!(load(broken, &key, "", &root).is_err() && load(&middle, broken, "", &root).is_err());
        assert!(load(&middle, &key, "", broken).is_err());
    }
}

#[test]
fn a_server_certificate_is_signed_by_the_plugged_in_ca() {
    let (root, middle, key) = plugged_in();
    let texts = AuthorityTexts { certificate: &middle, key: &key, chain: &middle, roots: &root };
    let ca = SigningAuthority::from_texts(texts, NOW).unwrap();
    let (issued, key) =
        ca.issue_with_key(&[SubjectName::of_text("127.0.0.1")], Duration::from_secs(60), NOW, [3; 16]).unwrap();
    assert!(key.is_ec() && issued.certificate.is_signed_by(&Certificate::all_from_pem(&middle).unwrap()[0]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever names a request has, the certificate has the caller's name only.
    #[test]
    fn a_certificate_requested_by_n_never_names_m(
        caller in "[a-z0-9-]{1,20}", wanted in proptest::collection::vec("[a-z0-9./:-]{0,60}", 0..4), seconds: i64,
    ) {
        let ca = root(KeyKind::P256);
        let names: Vec<SubjectName> = wanted.iter().map(|name| SubjectName::of_text(&format!("spiffe://{name}"))).collect();
        let request = CertificateRequest::from_pem(&own_request(KeyKind::P256, &names)).unwrap();
        let own = SpiffeId::new("cluster.local", "shop", &caller).unwrap();
        let issued = ca.issue(&request, &[(&own).into()], seconds, LeafLifetimes::default(), NOW, [7; 16]);
        if let Ok(issued) = issued {
            prop_assert_eq!(issued.certificate.identity().unwrap(), own);
            prop_assert!(issued.certificate.not_after <= NOW + 90 * DAY as i64);
            prop_assert!(issued.certificate.not_after > NOW);
        } else {
            prop_assert!(seconds > 90 * DAY as i64);
        }
    }

    /// Nothing panics, whatever is sent.
    #[test]
    fn any_text_is_answered(text in "\\PC{0,200}", bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = CertificateRequest::from_pem(&text);
        let wrapped = |label| pem::encode(label, &bytes);
        let _ = CertificateRequest::from_pem(&wrapped("CERTIFICATE REQUEST"));
        let _ = Certificate::all_from_pem(&wrapped("CERTIFICATE"));
        let _ = PrivateKey::from_pem(&wrapped("PRIVATE KEY"));
        let _ = PrivateKey::from_pem(&wrapped("EC PRIVATE KEY"));
        let _ = text.parse::<SpiffeId>();
    }

    /// A changed byte of a request is noticed, or changes nothing that counts.
    #[test]
    fn a_modified_request_is_refused(at in 0usize..1000, bit in 0u8..8) {
        let request = own_request(KeyKind::P256, &[identity()]);
        let expected = CertificateRequest::from_pem(&request).unwrap();
        let mut content = pem::first_block(&request).unwrap().content.to_vec();
        let at = at % content.len();
        content[at] ^= 1 << bit;
        if let Ok(read) = CertificateRequest::from_pem(&pem::encode("CERTIFICATE REQUEST", &content)) {
            prop_assert_eq!(read, expected);
        }
    }
}
