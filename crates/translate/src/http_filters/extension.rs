//! Filters of TrafficExtension and WasmPlugin objects. Those of a phase run before the filter the phase is named after.

use api::envoy::extensions::filters::network::http_connection_manager::v3::{HttpFilter as EnvoyFilter, http_filter};
use api::istio::extensions::v1alpha1::traffic_extension::ExecutionPhase;

use super::{HttpFilter, HttpFilterInput};
use crate::extension::{Extension, FilterConfigSource, FilterLevel, extensions};

pub(super) fn add_authn(input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    add(input, ExecutionPhase::Authn, filters);
}

pub(super) fn add_authz(input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    add(input, ExecutionPhase::Authz, filters);
}

/// Phase STATS, then extensions without a phase.
pub(super) fn add_rest(input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    add(input, ExecutionPhase::Stats, filters);
    add(input, ExecutionPhase::Unspecified, filters);
}

fn add(input: &HttpFilterInput<'_>, phase: ExecutionPhase, filters: &mut Vec<HttpFilter>) {
    let found = extensions(input.view, phase, FilterLevel::Http, input.side, input.port);
    filters.extend(found.into_iter().map(HttpFilter::Extension));
}

pub(super) fn render(extension: &Extension) -> EnvoyFilter {
    let config = match extension.source(FilterLevel::Http) {
        FilterConfigSource::Typed(config) => http_filter::ConfigType::TypedConfig(config),
        FilterConfigSource::Discovered(source) => http_filter::ConfigType::ConfigDiscovery(*source),
    };
    EnvoyFilter { name: extension.name().to_string(), config_type: Some(config), ..EnvoyFilter::default() }
}
