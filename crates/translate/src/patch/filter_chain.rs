//! Patches to filter chains and network filters.

use api::envoy::config::listener::v3::{Filter, FilterChain, Listener, filter};
use api::istio::networking::v1alpha3::envoy_filter::ApplyTo;
use api::istio::networking::v1alpha3::envoy_filter::patch::Operation;
use model::config::patches::Patch;
use model::hashed::Hashed;

use super::matching::{captures, filter_match, listener_match, names_filter, unset_or_equal};
use super::merge::{self, MessageMerge};
use super::{cluster, connection_manager, list, list_merge, of, value};

/// Whether a chain is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChainFate {
    Kept,
    Removed,
}

/// Applies patches that match the listener to its chains. Chains without filters are removed.
pub(super) fn apply(listener: &mut Listener, patches: &[Hashed<Patch>]) {
    let captures = captures(&listener.name);
    let mut keep = |chain: &mut FilterChain| {
        !chain.filters.is_empty() && apply_to_chain(chain, captures, patches) == ChainFate::Kept
    };
    listener.filter_chains.retain_mut(&mut keep);
    if listener.default_filter_chain.as_mut().is_some_and(|chain| !keep(chain)) {
        listener.default_filter_chain = None;
    }
    for patch in of(patches, ApplyTo::FilterChain).filter(|patch| patch.operation == Operation::Add) {
        listener.filter_chains.extend(value(patch).filter(|chain: &FilterChain| !chain.filters.is_empty()));
    }
}

/// Applies route patches to inline route tables of connection managers.
pub(super) fn apply_to_routes(listener: &mut Listener, patches: &[Hashed<Patch>]) {
    if !patches.iter().any(|patch| connection_manager::changes_routes(patch)) {
        return;
    }
    let chains = listener.filter_chains.iter_mut().chain(listener.default_filter_chain.as_mut());
    for filter in chains.flat_map(|chain| chain.filters.iter_mut()) {
        connection_manager::apply_to_routes(filter, patches);
    }
}

fn apply_to_chain(chain: &mut FilterChain, captures: bool, patches: &[Hashed<Patch>]) -> ChainFate {
    let mut open = MessageMerge::new(&mut *chain);
    for patch in of(patches, ApplyTo::FilterChain) {
        // Matched against the current chain, which the previous patch may have changed.
        if listener_match(patch).is_some() && !matches(patch, captures, open.message()) {
            continue;
        }
        if patch.operation == Operation::Remove {
            return ChainFate::Removed;
        }
        if list_merge(patch).is_some() {
            merge_chain(&mut open, patch);
        }
    }
    drop(open);
    // Matched against the chain once for all filters.
    let matching = |patch: &&Hashed<Patch>| {
        [ApplyTo::NetworkFilter, ApplyTo::HttpFilter].contains(&patch.apply_to) && matches(patch, captures, chain)
    };
    let patches: Vec<Hashed<Patch>> = patches.iter().filter(matching).cloned().collect();
    for patch in of(&patches, ApplyTo::NetworkFilter) {
        let named = filter_match(patch);
        let matches = |filter: &Filter| named.is_some_and(|conditions| conditions.name == filter.name);
        let matches: Option<&dyn Fn(&Filter) -> bool> = if named.is_some() { Some(&matches) } else { None };
        list::edit(&mut chain.filters, patch.operation, value(patch), matches);
    }
    for filter in &mut chain.filters {
        for patch in of(&patches, ApplyTo::NetworkFilter).filter(|patch| patch.operation == Operation::Merge) {
            if names_filter(patch, filter) {
                merge_filter(filter, patch);
            }
        }
        connection_manager::apply(filter, &patches);
    }
    ChainFate::Kept
}

/// A patch with a transport socket of the chain's type changes only the socket.
fn merge_chain(chain: &mut MessageMerge<'_, FilterChain>, patch: &Patch) {
    if patch.message().is_some_and(|value| value.has_field_by_name("transport_socket")) {
        let socket = value::<FilterChain>(patch).and_then(|value| value.transport_socket);
        if let (Some(old), Some(new)) = (&mut chain.message().transport_socket, socket)
            && old.name == new.name
        {
            return cluster::merge_socket(old, &new);
        }
    }
    chain.merge(patch);
}

/// Merges a patch's filter into this one, which must have a typed config.
fn merge_filter(filter: &mut Filter, patch: &Patch) {
    use filter::ConfigType::TypedConfig;
    let Some(new): Option<Filter> = value(patch) else { return };
    let Some(TypedConfig(old)) = &mut filter.config_type else { return };
    let settings = if let Some(TypedConfig(new)) = &new.config_type { Some(new) } else { None };
    merge::merge_filter((&mut filter.name, old), (&new.name, settings));
}

fn matches(patch: &Patch, captures: bool, chain: &FilterChain) -> bool {
    let Some(listener) = listener_match(patch) else { return true };
    let none = Default::default();
    let found = chain.filter_chain_match.as_ref().unwrap_or(&none);
    let port = found.destination_port.unwrap_or(0);
    if captures && listener.port_number > 0 && listener.port_number != port {
        return false;
    }
    let Some(conditions) = &listener.filter_chain else { return true };
    let alpn = |value: &str| found.application_protocols.iter().any(|protocol| protocol == value);
    unset_or_equal(&conditions.name, &chain.name)
        && (conditions.sni.is_empty() || found.server_names.contains(&conditions.sni))
        && unset_or_equal(&conditions.transport_protocol, &found.transport_protocol)
        && (conditions.application_protocols.is_empty() || conditions.application_protocols.split(',').all(alpn))
        && (conditions.destination_port == 0 || conditions.destination_port == port)
}
