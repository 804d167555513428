//! The identity in a client's verified certificate, and which clients may be sent secrets.

use model::printable::excerpt;
use model::proxy::Proxy;
use model::settings::Knobs;
use tonic::Status;
use trust::identity::SpiffeId;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use xds::Peer;

use crate::tls::ClientCertificates;
use crate::trust::authenticate::Caller;

/// Bytes of the node's namespace and account that an error repeats.
const SHOWN: usize = 64;

/// Namespace and account of `spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    pub namespace: String,
    pub account: String,
}

/// The namespace in the client's certificate. `None` without a certificate that has one.
pub(crate) fn proven_namespace(peer: &Peer) -> Option<String> {
    shown(peer).into_iter().next().map(|identity| identity.namespace)
}

/// The identity that the client has proved: one in its certificate with the node's namespace and service account.
/// A node only claims an identity; without a certificate nothing is proved.
/// A certificate of another identity ends the stream, as in upstream.
pub(super) fn identified(peer: &Peer, proxy: &Proxy, knobs: &Knobs) -> Result<Option<Identity>, Status> {
    let shown = shown(peer);
    let Some(first) = shown.first().cloned() else { return Ok(None) };
    let said = proxy.meta("SERVICE_ACCOUNT");
    let is_own = |identity: &Identity| {
        proxy.namespace == identity.namespace.as_str() && said.is_none_or(|said| said == identity.account)
    };
    let own = shown.into_iter().find(is_own);
    if own.is_none() && knobs.identity_check {
        let (namespace, account) = (excerpt(proxy.namespace.as_str(), SHOWN), excerpt(said.unwrap_or("any"), SHOWN));
        return Err(Status::permission_denied(format!(
            "authorization failed: the certificate is of service account {} in namespace {}, the node says {account} in \
             {namespace}",
            first.account, first.namespace
        )));
    }
    Ok(own)
}

/// Whether a client may be sent secrets: if it has proved its identity, or if it uses the plain-text port and the
/// operator declared the network trusted.
pub(super) fn may_have_secrets(identity: Option<&Identity>, peer: &Peer, knobs: &Knobs) -> bool {
    identity.is_some()
        || knobs.trust_plaintext
            && peer.extensions.get::<ClientCertificates>().is_none()
            && peer.extensions.get::<Caller>().is_none()
}

/// Every identity in the client's certificate.
fn shown(peer: &Peer) -> Vec<Identity> {
    if let Some(caller) = peer.extensions.get::<Caller>() {
        let identity =
            |id: &SpiffeId| Identity { namespace: id.namespace.clone(), account: id.service_account.clone() };
        return caller.identities.iter().map(identity).collect();
    }
    let own = peer.extensions.get::<ClientCertificates>().and_then(|ClientCertificates(chain)| chain.first());
    own.map(|own| identities(own)).unwrap_or_default()
}

/// Every identity in a certificate.
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

    use super::{ClientCertificates, Knobs, Peer, Proxy, identified, identity, may_have_secrets};

    fn peer(identity: Option<&str>) -> Peer {
        let mut extensions = http::Extensions::new();
        if let Some(identity) = identity {
            let chain = Authority::new().workload(identity).chain;
            let certificate = CertificateDer::from_pem_slice(chain.as_bytes()).unwrap();
            extensions.insert(ClientCertificates(vec![certificate].into()));
        }
        Peer { address: None, headers: http::HeaderMap::new(), extensions }
    }

    /// Whether the client proved its identity, if it is served, and whether it may have secrets.
    fn check(identity: Option<&str>, knobs: &Knobs) -> Option<(bool, bool)> {
        let node = Node { id: "router~10.0.0.1~edge.shop~shop.svc.cluster.local".to_owned(), ..Node::default() };
        let (peer, proxy) = (peer(identity), Proxy::from_node(&node).unwrap());
        let found = identified(&peer, &proxy, knobs).ok()?;
        Some((found.is_some(), may_have_secrets(found.as_ref(), &peer, knobs)))
    }

    #[test]
    fn a_certificate_of_its_namespace_verifies_a_client() {
        let knobs = Knobs::default();
        assert_eq!(check(Some("spiffe://mesh/ns/shop/sa/edge"), &knobs), Some((true, true)));
        assert_eq!(check(Some("spiffe://mesh/shop"), &knobs), Some((false, false)), "no identity of a workload");
        assert_eq!(check(None, &knobs), Some((false, false)));
    }

    #[test]
    fn hole_02_a_certificate_of_another_namespace_is_not_served() {
        let stranger = Some("spiffe://mesh/ns/bank/sa/edge");
        assert_eq!(check(stranger, &Knobs::default()), None);
        let lenient = Knobs { identity_check: false, trust_plaintext: true, ..Knobs::default() };
        assert_eq!(check(stranger, &lenient), Some((false, false)), "served, but not taken for the other");
    }

    #[test]
    fn words_alone_count_only_where_the_operator_trusts_the_network() {
        let trusting = Knobs { trust_plaintext: true, ..Knobs::default() };
        assert_eq!(check(None, &trusting), Some((false, true)), "secrets, but no pins that outlive the stream");
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
