//! Istio's peer metadata filter: tells both ends of a request who the other is.
//! Only Istio's Envoy build has it.

use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;
use serde_json::json;

use super::{Connection, HttpFilter, named};
use crate::class::Class;
use crate::structs::typed_struct;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MetadataExchange {
    Inbound,
    Outbound,
    /// Outbound, without headers to destinations outside the mesh.
    OutboundInMesh,
}

pub(super) fn add(connection: &Connection<'_>, filters: &mut Vec<HttpFilter>) {
    let view = connection.view;
    if !view.settings.knobs.metadata_exchange || !view.proxy.extensions.contains("envoy.filters.http.peer_metadata") {
        return;
    }
    filters.push(HttpFilter::MetadataExchange(match connection.class {
        Class::SidecarInbound => MetadataExchange::Inbound,
        Class::SidecarOutbound | Class::Gateway if connection.hide_metadata => MetadataExchange::OutboundInMesh,
        Class::SidecarOutbound | Class::Gateway => MetadataExchange::Outbound,
    }));
}

pub(super) fn render(plan: &MetadataExchange) -> EnvoyFilter {
    let discovery = json!([{"istio_headers": {}}, {"workload_discovery": {}}]);
    let config = match plan {
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
    named("istio.metadata_exchange", typed_struct("type.googleapis.com/io.istio.http.peer_metadata.Config", &config))
}
