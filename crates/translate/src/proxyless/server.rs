//! The listener of a gRPC server: one filter chain, with or without mutual TLS, and the authorization policies of its port.

use api::any;
use api::envoy::config::core::v3::socket_address::PortSpecifier;
use api::envoy::config::core::v3::{Address, SocketAddress, TrafficDirection, address};
use api::envoy::config::listener::v3::filter::ConfigType;
use api::envoy::config::listener::v3::{Filter, FilterChain, Listener};
use api::envoy::config::rbac::v3::rbac::Action;
use api::envoy::config::route::v3::{
    NonForwardingAction, Route, RouteConfiguration, RouteMatch, VirtualHost, route, route_match,
};
use api::envoy::extensions::filters::http::rbac::v3::Rbac;
use api::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, http_connection_manager, http_filter,
};
use model::proxy::Proxy;
use prost::{Message, Name};

use super::{EnvoyResources, filter, router, tls};

/// Prefix of the listener's name; the address that the server listens on follows.
pub(super) const PREFIX: &str = "xds.istio.io/grpc/lds/inbound/";
/// Clients use mutual TLS for a pod with this label.
const TLS_LABEL: &str = "security.istio.io/tlsMode";

/// The listener, if the port belongs to a service of the client.
pub(super) fn listener(proxy: &Proxy, envoy: &impl EnvoyResources, name: &str, address: &str) -> Option<Listener> {
    let (host, port) = address.rsplit_once(':')?;
    let port: u32 = port.parse().ok()?;
    let chains = inbound_chains(envoy, port);
    let (secure, plain): (Vec<FilterChain>, Vec<FilterChain>) =
        chains.into_iter().partition(|chain| chain.transport_socket.is_some());
    // gRPC has no permissive mode: a server whose clients use mutual TLS requires it.
    let is_labelled = proxy.labels.get(TLS_LABEL).is_some_and(|mode| &**mode == "istio");
    let is_strict = !secure.is_empty() && (plain.is_empty() || is_labelled);
    let given = if is_strict { secure } else { plain };
    let chain = chain(&given.iter().find_map(manager)?, is_strict);
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let socket = SocketAddress {
        address: host,
        port_specifier: Some(PortSpecifier::PortValue(port)),
        ..SocketAddress::default()
    };
    let address = Some(Address { address: Some(address::Address::SocketAddress(socket)) });
    Some(Listener { name: name.to_owned(), address, filter_chains: vec![chain], ..Listener::default() })
}

/// The filter chains of Envoy's inbound listeners for a port.
fn inbound_chains(envoy: &impl EnvoyResources, port: u32) -> Vec<FilterChain> {
    let listeners = envoy.listeners().into_iter().filter_map(|listener| Listener::decode(listener.body.joined()).ok());
    let inbound = listeners.filter(|listener| listener.traffic_direction == i32::from(TrafficDirection::Inbound));
    let chains = inbound.flat_map(|listener| {
        let is_own = bound_port(&listener) == Some(port);
        listener.filter_chains.into_iter().filter(move |chain| {
            let matched = chain.filter_chain_match.as_ref().and_then(|given| given.destination_port);
            matched.map_or(is_own, |matched| matched == port)
        })
    });
    chains.collect()
}

fn bound_port(listener: &Listener) -> Option<u32> {
    match listener.address.as_ref()?.address.as_ref()? {
        address::Address::SocketAddress(SocketAddress {
            port_specifier: Some(PortSpecifier::PortValue(port)), ..
        }) => Some(*port),
        _ => None,
    }
}

/// The HTTP connection manager of a chain.
fn manager(chain: &FilterChain) -> Option<HttpConnectionManager> {
    chain.filters.iter().find_map(|filter| match &filter.config_type {
        Some(ConfigType::TypedConfig(config)) if config.type_url == HttpConnectionManager::type_url() => {
            HttpConnectionManager::decode(&*config.value).ok()
        }
        _ => None,
    })
}

fn chain(envoy: &HttpConnectionManager, is_strict: bool) -> FilterChain {
    let kind = if is_strict { "mtls" } else { "plaintext" };
    let everything = Route {
        r#match: Some(RouteMatch {
            path_specifier: Some(route_match::PathSpecifier::Prefix("/".to_owned())),
            ..RouteMatch::default()
        }),
        action: Some(route::Action::NonForwardingAction(NonForwardingAction {})),
        ..Route::default()
    };
    let vhost = VirtualHost { domains: vec!["*".to_owned()], routes: vec![everything], ..VirtualHost::default() };
    let routes =
        RouteConfiguration { name: "inbound".to_owned(), virtual_hosts: vec![vhost], ..RouteConfiguration::default() };
    let manager = HttpConnectionManager {
        route_specifier: Some(http_connection_manager::RouteSpecifier::RouteConfig(routes)),
        http_filters: envoy.http_filters.iter().filter_map(authorization).chain([router()]).collect(),
        ..HttpConnectionManager::default()
    };
    let filter =
        Filter { name: format!("inbound-hcm{kind}"), config_type: Some(ConfigType::TypedConfig(any(&manager))) };
    FilterChain {
        name: format!("inbound-{kind}"),
        filters: vec![filter],
        transport_socket: is_strict.then(tls::server),
        ..FilterChain::default()
    }
}

/// A filter of Envoy that allows or denies requests, with the fields that gRPC knows.
fn authorization(envoy: &HttpFilter) -> Option<HttpFilter> {
    let Some(http_filter::ConfigType::TypedConfig(config)) = &envoy.config_type else { return None };
    if config.type_url != Rbac::type_url() {
        return None;
    }
    let rules = Rbac::decode(&*config.value).ok()?.rules.filter(|rules| rules.action != i32::from(Action::Log))?;
    Some(filter(&envoy.name, any(&Rbac { rules: Some(rules), ..Rbac::default() })))
}
