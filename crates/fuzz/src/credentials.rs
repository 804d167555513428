//! What callers prove their identity with, and what trust is built on: tokens, CSRs, certificates, key sets, kubeconfigs.

use std::sync::LazyLock;
use std::time::Duration;

use model::settings::NameList;
use serde_json::Value;
use sources::kubernetes::kubeconfig as kubeconfigs;
use trust::authority::{AuthorityTexts, LeafLifetimes, SigningAuthority};
use trust::bundle::RootBundle;
use trust::certificate::Certificate;
use trust::crl::RevocationLists;
use trust::csr::{self, CertificateRequest};
use trust::identity::SpiffeId;
use trust::issue::SubjectName;
use trust::key::{KeyKind, PrivateKey};
use trust::token::{self, KeySet, TokenRules};
use trust::{pem, spiffe_bundle};

/// The time of all checks, in seconds since 1970.
const NOW: i64 = 1_800_000_000;
const OWN: &str = "spiffe://cluster.local/ns/shop/sa/cart";

struct Issuer {
    key: PrivateKey,
    keys: KeySet,
    rules: TokenRules,
    authority: SigningAuthority,
}

static ISSUER: LazyLock<Issuer> = LazyLock::new(|| {
    let new_key = || PrivateKey::generate(KeyKind::P256).expect("a key can be generated");
    let (key, lifetime) = (new_key(), Duration::from_secs(86_400));
    let keys = token::key_set(&key, "k").expect("a key has a key set");
    let rules = TokenRules { issuer: "issuer".to_owned(), audiences: vec!["istio-ca".to_owned()] };
    let authority = SigningAuthority::new_root("cluster.local", new_key(), lifetime, NOW, &[1; 16]).expect("a root");
    Issuer { key, keys: KeySet::parse(&keys).expect("our own key set"), rules, authority }
});

/// A token: as it is, and its payload with a good signature.
pub(crate) fn token(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = token::unverified_expiry(&text);
    let _ = ISSUER.keys.verify(&text, &ISSUER.rules, NOW);
    let Ok(claims) = serde_json::from_slice::<Value>(data) else { return };
    let Ok(signed) = token::sign(&ISSUER.key, "k", &claims) else { return };
    if let Ok(claims) = ISSUER.keys.verify(&signed, &ISSUER.rules, NOW)
        && let Ok(identity) = SpiffeId::of_service_account(&claims.subject, "cluster.local")
    {
        assert!(identity.to_string().starts_with("spiffe://cluster.local/ns/"), "{identity}");
    }
}

/// A CSR, in PEM or without its armour. Whatever it asks for, only the caller's identity is signed.
pub(crate) fn csr(data: &[u8]) {
    let text = match data.starts_with(b"-----") {
        true => String::from_utf8_lossy(data).into_owned(),
        false => pem::encode("CERTIFICATE REQUEST", data),
    };
    let _ = csr::check_content(&text, &[OWN.to_owned()]);
    let Ok(request) = CertificateRequest::from_pem(&text) else { return };
    let names = [SubjectName::of_text(OWN)];
    if let Ok(issued) = ISSUER.authority.issue(&request, &names, 0, LeafLifetimes::default(), NOW, [2; 16]) {
        assert_eq!(issued.certificate.uris, [OWN]);
        assert!(issued.certificate.dns_names.is_empty() && !issued.certificate.is_ca);
    }
}

/// Certificates, keys and revocation lists of files that an operator mounts.
pub(crate) fn pem_bundle(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = Certificate::from_der(data);
    let _ = PrivateKey::from_pem(&text);
    let _ = PrivateKey::from_pem(&pem::encode("PRIVATE KEY", data));
    let _ = spiffe_bundle::roots(&text);
    let texts = AuthorityTexts { certificate: &text, key: &text, chain: &text, roots: &text };
    let _ = SigningAuthority::from_texts(texts, NOW);
    let chain = Certificate::all_from_pem(&text).unwrap_or_default();
    for certificate in &chain {
        let _ = (certificate.identity(), certificate.organization(), certificate.is_signed_by(certificate));
    }
    if let Ok(roots) = RootBundle::from_pem(&text) {
        let _ = RevocationLists::from_pem(&text, &chain, &roots);
        let again = RootBundle::from_pem(&roots.to_pem()).map(|again| again.roots().len());
        assert_eq!(again.ok(), Some(roots.roots().len()));
    }
}

/// A key set: for Envoy, for our own tokens, and as a SPIFFE bundle.
pub(crate) fn jwks(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = model::jwks::check(&text);
    let _ = spiffe_bundle::roots(&text);
    if let Ok(keys) = KeySet::parse(&text) {
        let _ = keys.verify("eyJhbGciOiJFUzI1NiJ9.e30.AAAA", &ISSUER.rules, NOW);
    }
}

/// The kubeconfig of a remote cluster.
pub(crate) fn kubeconfig(data: &[u8]) {
    let _ = kubeconfigs::check(String::from_utf8_lossy(data).into_owned(), &NameList::default());
}
