//! Filters of TrafficExtension and WasmPlugin objects. Those of a phase run before the filter the phase is named after.

use api::envoy::extensions::filters::network::http_connection_manager::v3::{HttpFilter as EnvoyFilter, http_filter};
use api::istio::extensions::v1alpha1::traffic_extension::ExecutionPhase;

use super::{FilterPlan, HttpFilter, HttpFilterInput};
use crate::extension::{Extension, FilterConfigSource, FilterLevel, extensions};

#[derive(Debug, Hash)]
struct ExtensionFilter(Extension);

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
    filters.extend(found.into_iter().map(|extension| HttpFilter::new(ExtensionFilter(extension))));
}

impl FilterPlan for ExtensionFilter {
    fn render(&self) -> EnvoyFilter {
        let config = match self.0.source(FilterLevel::Http) {
            FilterConfigSource::Typed(config) => http_filter::ConfigType::TypedConfig(config),
            FilterConfigSource::Discovered(source) => http_filter::ConfigType::ConfigDiscovery(*source),
        };
        EnvoyFilter { name: self.0.name().to_string(), config_type: Some(config), ..EnvoyFilter::default() }
    }
}
