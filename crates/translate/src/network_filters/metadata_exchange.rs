//! Istio's metadata exchange over TCP: the server proxy learns the client's workload metadata. Only Istio's Envoy build
//! has it. The client's side is in its clusters, so only inbound listeners have this filter.

use api::envoy::config::listener::v3::Filter;
use scope::View;
use serde_json::json;

use super::{NetworkFilter, NetworkFilterInput, named};
use crate::listener_side::ListenerSide;
use crate::proto_struct::typed_struct;

/// Whether this proxy's inbound connections begin with a metadata exchange.
pub(crate) fn exchanged(view: &View) -> bool {
    view.settings.knobs.metadata_exchange && view.proxy.extensions.contains("envoy.filters.network.metadata_exchange")
}

pub(super) fn add(input: &NetworkFilterInput<'_>, filters: &mut Vec<NetworkFilter>) {
    if input.side == ListenerSide::SidecarInbound && exchanged(input.view) {
        filters.push(NetworkFilter::MetadataExchange);
    }
}

pub(super) fn render() -> Filter {
    let config = json!({"protocol": "istio-peer-exchange", "enable_discovery": true});
    let type_url = "type.googleapis.com/envoy.tcp.metadataexchange.config.MetadataExchange";
    named("istio.metadata_exchange", typed_struct(type_url, &config))
}
