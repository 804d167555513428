//! Revocation lists of a plugged-in CA, made by `rcgen`.

#![allow(clippy::unwrap_used)]

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa, Issuer,
    KeyIdMethod, KeyPair, SerialNumber, date_time_ymd,
};
use trust::bundle::RootBundle;
use trust::certificate::Certificate;
use trust::crl::{CrlError, RevocationLists};

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn list(issuer: &Issuer<'_, KeyPair>) -> String {
    let params = CertificateRevocationListParams {
        this_update: date_time_ymd(2024, 1, 1),
        next_update: date_time_ymd(2044, 1, 1),
        crl_number: SerialNumber::from(1_u64),
        issuing_distribution_point: None,
        revoked_certs: Vec::new(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    params.signed_by(issuer).unwrap().pem().unwrap()
}

#[test]
fn lists_must_be_signed_and_complete() {
    let root = CertifiedIssuer::self_signed(params("root"), KeyPair::generate().unwrap()).unwrap();
    let intermediate = CertifiedIssuer::signed_by(params("one"), KeyPair::generate().unwrap(), &root).unwrap();
    // The same name with another key.
    let foreign = CertifiedIssuer::self_signed(params("one"), KeyPair::generate().unwrap()).unwrap();
    let chain = Certificate::all_from_pem(&intermediate.pem()).unwrap();
    let roots = RootBundle::from_pem(&root.pem()).unwrap();
    let read = |text: &str| RevocationLists::from_pem(text, &chain, &roots);
    let (own, of_root) = (list(&intermediate), list(&root));
    let both = read(&(own.clone() + &of_root)).unwrap();
    assert_eq!(both.lists().len(), 2);
    assert_eq!(read(&both.to_pem()).unwrap(), both);
    read(&own).unwrap();
    assert_eq!(read(&of_root), Err(CrlError::Missing(chain[0].serial.clone())));
    assert_eq!(read(&(own.clone() + &list(&foreign))), Err(CrlError::Foreign { number: 2 }));
    assert_eq!(read(&root.pem()), Err(CrlError::NoList));
    assert!(matches!(read(""), Err(CrlError::Pem(_))));
    let mut broken = own.into_bytes();
    let middle = broken.len() / 2;
    broken[middle] = if broken[middle] == b'A' { b'B' } else { b'A' };
    assert!(read(&String::from_utf8(broken).unwrap()).is_err());
}
