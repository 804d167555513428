//! Certificates of workloads and hosts, signed by a test CA.

use std::net::{IpAddr, Ipv4Addr};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};

/// A certificate authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its key, both in PEM.
#[derive(Clone, Debug)]
pub struct Certificate {
    pub chain: String,
    pub key: String,
}

impl Default for Authority {
    fn default() -> Authority {
        Authority::new()
    }
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "root of a test");
        let key = KeyPair::generate().unwrap_or_else(|e| panic!("could not make a key: {e}"));
        Authority(CertifiedIssuer::self_signed(params, key).unwrap_or_else(|e| panic!("could not make a root: {e}")))
    }

    /// The root certificate in PEM.
    pub fn root(&self) -> String {
        self.0.pem()
    }

    /// A workload certificate for `spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT`. Also valid for 127.0.0.1, so that plain
    /// TLS clients can verify it.
    pub fn workload(&self, identity: &str) -> Certificate {
        let uri = identity.try_into().unwrap_or_else(|e| panic!("{identity} is no URI: {e}"));
        self.issue(vec![SanType::URI(uri), SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST))])
    }

    /// A certificate for a host name.
    pub fn host(&self, name: &str) -> Certificate {
        self.issue(vec![SanType::DnsName(name.try_into().unwrap_or_else(|e| panic!("{name} is no name: {e}")))])
    }

    fn issue(&self, names: Vec<SanType>) -> Certificate {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        let key = KeyPair::generate().unwrap_or_else(|e| panic!("could not make a key: {e}"));
        let signed = params.signed_by(&key, &self.0).unwrap_or_else(|e| panic!("could not sign: {e}"));
        Certificate { chain: signed.pem(), key: key.serialize_pem() }
    }
}
