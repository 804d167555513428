//! Who a client proved to be by a certificate that was checked against the CA, and who may be sent secrets.

use model::proxy::Proxy;
use model::settings::Knobs;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use xds::Peer;

use crate::tls::ClientCertificates;

/// Of `spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT`.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    namespace: String,
    account: String,
}

/// The namespace of the client's identity. `None` where it showed no certificate that bears one.
pub(crate) fn proven_namespace(peer: &Peer) -> Option<String> {
    let ClientCertificates(chain) = peer.extensions.get()?;
    identities(chain.first()?).into_iter().next().map(|identity| identity.namespace)
}

/// Whether this client is who it says it is. A node is only words: on the plain-text port anybody can say them, so
/// there nobody is, unless the operator says that the network can be trusted.
pub(super) fn is_verified(peer: &Peer, proxy: &Proxy, knobs: &Knobs) -> bool {
    let Some(certificates) = peer.extensions.get::<ClientCertificates>() else { return knobs.trust_plaintext };
    let Some(own) = certificates.0.first() else { return false };
    identities(own).iter().any(|Identity { namespace, account }| {
        proxy.namespace == namespace.as_str() && proxy.meta("SERVICE_ACCOUNT").is_none_or(|said| said == account)
    })
}

/// Every identity that a certificate bears.
fn identities(certificate: &[u8]) -> Vec<Identity> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    let uris = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    uris.filter_map(identity).collect()
}

fn identity(uri: &str) -> Option<Identity> {
    let parts: Vec<&str> = uri.strip_prefix("spiffe://")?.split('/').collect();
    match parts[..] {
        [_, "ns", namespace, "sa", account] => {
            Some(Identity { namespace: namespace.to_owned(), account: account.to_owned() })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use api::envoy::config::core::v3::Node;
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;
    use testkit::certificates::Authority;

    use super::{ClientCertificates, Knobs, Peer, Proxy, identity, is_verified};

    fn peer(identity: Option<&str>) -> Peer {
        let mut extensions = http::Extensions::new();
        if let Some(identity) = identity {
            let chain = Authority::new().workload(identity).chain;
            let certificate = CertificateDer::from_pem_slice(chain.as_bytes()).unwrap();
            extensions.insert(ClientCertificates(vec![certificate].into()));
        }
        Peer { address: None, headers: http::HeaderMap::new(), extensions }
    }

    fn check(identity: Option<&str>, trust_plaintext: bool) -> bool {
        let node = Node { id: "router~10.0.0.1~edge.shop~shop.svc.cluster.local".to_owned(), ..Node::default() };
        let proxy = Proxy::from_node(&node).unwrap();
        is_verified(&peer(identity), &proxy, &Knobs { trust_plaintext, ..Knobs::default() })
    }

    #[test]
    fn a_certificate_of_its_namespace_verifies_a_client() {
        assert!(check(Some("spiffe://mesh/ns/shop/sa/edge"), false));
        assert!(!check(Some("spiffe://mesh/ns/bank/sa/edge"), false));
        assert!(!check(Some("spiffe://mesh/shop"), false));
    }

    #[test]
    fn words_alone_count_only_where_the_operator_trusts_the_network() {
        assert!(!check(None, false));
        assert!(check(None, true));
        assert!(!check(Some("spiffe://mesh/ns/bank/sa/edge"), true), "a certificate that says otherwise");
    }

    #[test]
    fn only_whole_identities_count() {
        let namespace_of = |uri: &str| identity(uri).map(|identity| identity.namespace);
        assert_eq!(namespace_of("spiffe://cluster.local/ns/istio-system/sa/istiod").as_deref(), Some("istio-system"));
        for bad in ["spiffe://a/ns/b", "https://a/ns/b/sa/c", "spiffe://a/x/b/sa/c", "spiffe://a/ns/b/sa/c/d"] {
            assert_eq!(namespace_of(bad), None, "{bad}");
        }
    }
}
