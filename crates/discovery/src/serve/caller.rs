//! Who a client proved to be: the identity in a certificate that was checked against the CA.

use x509_parser::extensions::GeneralName;
use xds::Peer;

use crate::tls::ClientCertificates;

/// The namespace of the client's SPIFFE identity. `None` where it showed no certificate that bears one.
pub(crate) fn proven_namespace(peer: &Peer) -> Option<String> {
    let ClientCertificates(chain) = peer.extensions.get()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(chain.first()?).ok()?;
    let names = certificate.subject_alternative_name().ok()??;
    names.value.general_names.iter().find_map(|name| match name {
        GeneralName::URI(uri) => namespace_of(uri).map(str::to_owned),
        _ => None,
    })
}

/// Of `spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT`.
fn namespace_of(uri: &str) -> Option<&str> {
    let mut parts = uri.strip_prefix("spiffe://")?.split('/').skip(1);
    match (parts.next(), parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("ns"), Some(namespace), Some("sa"), Some(_), None) => Some(namespace),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::namespace_of;

    #[test]
    fn only_whole_identities_count() {
        assert_eq!(namespace_of("spiffe://cluster.local/ns/istio-system/sa/istiod"), Some("istio-system"));
        for bad in ["spiffe://a/ns/b", "https://a/ns/b/sa/c", "spiffe://a/x/b/sa/c", "spiffe://a/ns/b/sa/c/d"] {
            assert_eq!(namespace_of(bad), None, "{bad}");
        }
    }
}
