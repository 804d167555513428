//! Istio's peer metadata filter: client and server proxy exchange their workload metadata. Only Istio's Envoy build
//! has it.

use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;
use serde_json::json;

use super::{FilterPlan, HttpFilter, HttpFilterInput, named};
use crate::listener_side::ListenerSide;
use crate::proto_struct::typed_struct;

#[derive(Debug, Hash)]
enum MetadataExchange {
    Inbound,
    Outbound,
    /// Outbound; no headers are sent to destinations outside the mesh.
    OutboundInMesh,
}

pub(super) fn add(input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    let view = input.view;
    if !view.settings.knobs.metadata_exchange || !view.proxy.extensions.contains("envoy.filters.http.peer_metadata") {
        return;
    }
    filters.push(HttpFilter::new(match input.side {
        ListenerSide::SidecarInbound => MetadataExchange::Inbound,
        ListenerSide::SidecarOutbound | ListenerSide::Gateway if input.hide_metadata => {
            MetadataExchange::OutboundInMesh
        }
        ListenerSide::SidecarOutbound | ListenerSide::Gateway => MetadataExchange::Outbound,
    }));
}

impl FilterPlan for MetadataExchange {
    fn render(&self) -> EnvoyFilter {
        let discovery = json!([{"istio_headers": {}}, {"workload_discovery": {}}]);
        let config = match self {
            MetadataExchange::Inbound => json!({
                "downstream_discovery": discovery,
                "downstream_propagation": [{"istio_headers": {}}],
            }),
            MetadataExchange::Outbound => json!({
                "upstream_discovery": discovery,
                "upstream_propagation": [{"istio_headers": {}}],
            }),
            MetadataExchange::OutboundInMesh => json!({
                "upstream_discovery": discovery,
                "upstream_propagation": [{"istio_headers": {"skip_external_clusters": true}}],
            }),
        };
        named(
            "istio.metadata_exchange",
            typed_struct("type.googleapis.com/io.istio.http.peer_metadata.Config", &config),
        )
    }
}
