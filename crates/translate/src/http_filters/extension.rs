//! Users' own filters, by TrafficExtension and WasmPlugin. Each phase ends before the filter it is named after.

use api::envoy::extensions::filters::network::http_connection_manager::v3::{HttpFilter as EnvoyFilter, http_filter};
use api::istio::extensions::v1alpha1::traffic_extension::ExecutionPhase;

use super::{Connection, HttpFilter};
use crate::extension::{Extension, Level, Source, extensions};

pub(super) fn add_authn(connection: &Connection<'_>, filters: &mut Vec<HttpFilter>) {
    add(connection, ExecutionPhase::Authn, filters);
}

pub(super) fn add_authz(connection: &Connection<'_>, filters: &mut Vec<HttpFilter>) {
    add(connection, ExecutionPhase::Authz, filters);
}

/// Those of metrics, then those that named no phase.
pub(super) fn add_rest(connection: &Connection<'_>, filters: &mut Vec<HttpFilter>) {
    add(connection, ExecutionPhase::Stats, filters);
    add(connection, ExecutionPhase::Unspecified, filters);
}

fn add(connection: &Connection<'_>, phase: ExecutionPhase, filters: &mut Vec<HttpFilter>) {
    let found = extensions(connection.view, phase, Level::Http, connection.class, connection.port);
    filters.extend(found.into_iter().map(HttpFilter::Extension));
}

pub(super) fn render(extension: &Extension) -> EnvoyFilter {
    let config = match extension.source(Level::Http) {
        Source::Typed(config) => http_filter::ConfigType::TypedConfig(config),
        Source::Discovered(source) => http_filter::ConfigType::ConfigDiscovery(*source),
    };
    EnvoyFilter { name: extension.name().to_string(), config_type: Some(config), ..EnvoyFilter::default() }
}
