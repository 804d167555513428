//! How a proxy connects to an endpoint: in plain text, or with TLS and which certificate.

use api::envoy::config::cluster::v3::Cluster;
use api::envoy::config::core::v3::transport_socket::ConfigType;
use api::envoy::config::core::v3::{Metadata, TransportSocket};
use api::envoy::extensions::transport_sockets::tls::v3::UpstreamTlsContext;
use prost::Message;

/// The metadata by which Envoy selects a transport socket for an endpoint.
const MATCH: &str = "envoy.transport_socket_match";

/// What the destination sees of the connection's security.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientTransport {
    pub is_encrypted: bool,
    /// The proxy presents a certificate.
    pub has_certificate: bool,
    pub server_name: String,
    /// Protocols that it offers.
    pub protocols: Vec<String>,
}

impl ClientTransport {
    /// The transport to an endpoint with this metadata.
    pub(super) fn of(cluster: &Cluster, endpoint: Option<&Metadata>) -> ClientTransport {
        let labels = endpoint.and_then(|metadata| metadata.filter_metadata.get(MATCH));
        let fits = |wanted: &api::Struct| {
            wanted.fields.iter().all(|(key, value)| labels.and_then(|of| of.fields.get(key)) == Some(value))
        };
        let chosen = cluster.transport_socket_matches.iter().find(|one| one.r#match.as_ref().is_none_or(fits));
        let socket = chosen.map_or(cluster.transport_socket.as_ref(), |chosen| chosen.transport_socket.as_ref());
        socket.and_then(tls_context).map(ClientTransport::with).unwrap_or_default()
    }

    fn with(tls: UpstreamTlsContext) -> ClientTransport {
        let common = tls.common_tls_context.unwrap_or_default();
        let has_certificate =
            !common.tls_certificate_sds_secret_configs.is_empty() || !common.tls_certificates.is_empty();
        ClientTransport { is_encrypted: true, has_certificate, server_name: tls.sni, protocols: common.alpn_protocols }
    }

    /// Whether the destination's sidecar takes the connection for one of the mesh.
    pub fn is_mesh(&self) -> bool {
        self.protocols.iter().any(|protocol| protocol == "istio")
    }
}

fn tls_context(socket: &TransportSocket) -> Option<UpstreamTlsContext> {
    let Some(ConfigType::TypedConfig(config)) = &socket.config_type else { return None };
    let is_tls = config.type_url.ends_with("tls.v3.UpstreamTlsContext");
    is_tls.then(|| UpstreamTlsContext::decode(&*config.value).ok()).flatten()
}
