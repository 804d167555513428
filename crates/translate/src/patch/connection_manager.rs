//! Patches inside connection managers: HTTP filters, and inline route tables of inbound listeners.

use api::any;
use api::envoy::config::listener::v3::{Filter, filter};
use api::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use api::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, http_filter,
};
use api::istio::networking::v1alpha3::envoy_filter::ApplyTo;
use api::istio::networking::v1alpha3::envoy_filter::patch::Operation;
use model::config::patches::Patch;
use model::hashed::Hashed;
use prost::{Message, Name};

use super::matching::{filter_match, names_filter};
use super::{list, merge, of, route, value};

const CONNECTION_MANAGER: &str = "envoy.filters.network.http_connection_manager";

/// Whether a patch applies to route tables.
pub(super) fn changes_routes(patch: &Patch) -> bool {
    matches!(patch.apply_to, ApplyTo::RouteConfiguration | ApplyTo::VirtualHost | ApplyTo::HttpRoute)
}

/// Applies route patches to the filter's inline route table, if it has one.
pub(super) fn apply_to_routes(filter: &mut Filter, patches: &[Hashed<Patch>]) {
    edit(filter, |manager| {
        let Some(RouteSpecifier::RouteConfig(table)) = &mut manager.route_specifier else { return };
        let matching =
            patches.iter().filter(|patch| changes_routes(patch) && route::matches_sidecar(patch, &table.name));
        let matching: Vec<Hashed<Patch>> = matching.cloned().collect();
        route::apply(table, &matching);
    });
}

/// Applies patches to the HTTP filters of a connection manager. The patches match the filter chain.
pub(super) fn apply(filter: &mut Filter, patches: &[Hashed<Patch>]) {
    let matching: Vec<&Patch> = of(patches, ApplyTo::HttpFilter).filter(|patch| names_filter(patch, filter)).collect();
    if matching.is_empty() {
        return;
    }
    edit(filter, |manager| {
        for patch in &matching {
            let named = http_filter_name(patch);
            let matches = |filter: &HttpFilter| named == Some(&*filter.name);
            let matches: Option<&dyn Fn(&HttpFilter) -> bool> = if named.is_some() { Some(&matches) } else { None };
            list::edit(&mut manager.http_filters, patch.operation, value(patch), matches);
        }
        for filter in &mut manager.http_filters {
            for patch in matching.iter().filter(|patch| patch.operation == Operation::Merge) {
                if http_filter_name(patch).is_none_or(|name| name == filter.name) {
                    merge_filter(filter, patch);
                }
            }
        }
    });
}

/// Changes a connection manager; other filters are unchanged.
fn edit(filter: &mut Filter, change: impl FnOnce(&mut HttpConnectionManager)) {
    let Some(filter::ConfigType::TypedConfig(config)) = &mut filter.config_type else { return };
    if filter.name != CONNECTION_MANAGER || config.type_url != HttpConnectionManager::type_url() {
        return;
    }
    if let Ok(mut manager) = HttpConnectionManager::decode(&*config.value) {
        change(&mut manager);
        *config = any(&manager);
    }
}

/// The HTTP filter that a patch matches.
fn http_filter_name(patch: &Patch) -> Option<&str> {
    Some(&filter_match(patch)?.sub_filter.as_ref()?.name)
}

/// Merges a patch's filter into this one, which must have a typed config.
fn merge_filter(filter: &mut HttpFilter, patch: &Patch) {
    use http_filter::ConfigType::TypedConfig;
    let Some(new): Option<HttpFilter> = value(patch) else { return };
    let Some(TypedConfig(old)) = &mut filter.config_type else { return };
    let settings = if let Some(TypedConfig(new)) = &new.config_type { Some(new) } else { None };
    merge::merge_filter((&mut filter.name, old), (&new.name, settings));
}
