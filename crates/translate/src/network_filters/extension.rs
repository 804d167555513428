//! Network filters of TrafficExtension and WasmPlugin objects.

use api::envoy::config::listener::v3::{Filter, filter};
use api::istio::extensions::v1alpha1::traffic_extension::ExecutionPhase;

use super::{ChainEnd, NetworkFilter, NetworkFilterInput};
use crate::extension::{Extension, FilterConfigSource, FilterLevel, extensions};

/// Phases AUTHN and AUTHZ, which run before AuthorizationPolicies.
pub(super) fn add_checks(input: &NetworkFilterInput<'_>, filters: &mut Vec<NetworkFilter>) {
    add(input, ExecutionPhase::Authn, filters);
    add(input, ExecutionPhase::Authz, filters);
}

/// Phase STATS, then extensions without a phase.
pub(super) fn add_rest(input: &NetworkFilterInput<'_>, filters: &mut Vec<NetworkFilter>) {
    add(input, ExecutionPhase::Stats, filters);
    add(input, ExecutionPhase::Unspecified, filters);
}

fn add(input: &NetworkFilterInput<'_>, phase: ExecutionPhase, filters: &mut Vec<NetworkFilter>) {
    if input.end == ChainEnd::Unknown {
        return;
    }
    let found = extensions(input.view, phase, FilterLevel::Network, input.side, input.port);
    filters.extend(found.into_iter().map(NetworkFilter::Extension));
}

pub(super) fn render(extension: &Extension) -> Filter {
    let config = match extension.source(FilterLevel::Network) {
        FilterConfigSource::Typed(config) => filter::ConfigType::TypedConfig(config),
        FilterConfigSource::Discovered(source) => filter::ConfigType::ConfigDiscovery(*source),
    };
    Filter { name: extension.name().to_string(), config_type: Some(config) }
}
