//! Users' own filters of connections, by TrafficExtension and WasmPlugin.

use api::envoy::config::listener::v3::{Filter, filter};
use api::istio::extensions::v1alpha1::traffic_extension::ExecutionPhase;

use super::{Connection, Ending, NetworkFilter};
use crate::extension::{Extension, Level, Source, extensions};

/// Those of authentication and authorization, which come before the proxy's own checks.
pub(super) fn add_checks(connection: &Connection<'_>, filters: &mut Vec<NetworkFilter>) {
    add(connection, ExecutionPhase::Authn, filters);
    add(connection, ExecutionPhase::Authz, filters);
}

/// Those of metrics, then those that named no phase.
pub(super) fn add_rest(connection: &Connection<'_>, filters: &mut Vec<NetworkFilter>) {
    add(connection, ExecutionPhase::Stats, filters);
    add(connection, ExecutionPhase::Unspecified, filters);
}

fn add(connection: &Connection<'_>, phase: ExecutionPhase, filters: &mut Vec<NetworkFilter>) {
    if connection.ending == Ending::Unknown {
        return;
    }
    let found = extensions(connection.view, phase, Level::Network, connection.class, connection.port);
    filters.extend(found.into_iter().map(NetworkFilter::Extension));
}

pub(super) fn render(extension: &Extension) -> Filter {
    let config = match extension.source(Level::Network) {
        Source::Typed(config) => filter::ConfigType::TypedConfig(config),
        Source::Discovered(source) => filter::ConfigType::ConfigDiscovery(*source),
    };
    Filter { name: extension.name().to_string(), config_type: Some(config) }
}
