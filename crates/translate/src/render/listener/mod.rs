//! Renders listeners.

mod chain;
mod filters;
mod tls;

use api::envoy::config::core::v3::address::Address as EnvoyAddressKind;
use api::envoy::config::core::v3::{Address as EnvoyAddress, Pipe, SocketAddress, TrafficDirection, socket_address};
use api::envoy::config::listener::v3::listener::{ConnectionBalanceConfig, connection_balance_config};
use api::envoy::config::listener::v3::{AdditionalAddress, Listener};

use crate::plan::listener::{Binding, Direction, ListenerAddress, ListenerPlan};
use crate::telemetry::access_log;

/// The listener.
pub fn listener(plan: &ListenerPlan) -> Listener {
    let direction = match plan.direction {
        Direction::Inbound => TrafficDirection::Inbound,
        Direction::Outbound => TrafficDirection::Outbound,
    };
    let additional =
        |a: &ListenerAddress| AdditionalAddress { address: Some(address(a)), ..AdditionalAddress::default() };
    Listener {
        name: plan.name.to_string(),
        address: Some(address(&plan.address)),
        additional_addresses: plan.additional_addresses.iter().map(additional).collect(),
        traffic_direction: direction.into(),
        bind_to_port: (plan.binding == Binding::Virtual).then_some(false),
        use_original_dst: plan.use_original_dst.then_some(true),
        transparent: plan.transparent.then_some(true),
        connection_balance_config: plan.exact_balance.then(exact_balance),
        max_connections_to_accept_per_socket_event: plan.connections_per_event,
        listener_filters: plan.filters.iter().map(filters::listener_filter).collect(),
        listener_filters_timeout: plan.filters_timeout,
        continue_on_listener_filters_timeout: plan.continue_on_filters_timeout,
        access_log: access_log::render(&plan.access_log),
        filter_chains: plan.chains.iter().map(chain::filter_chain).collect(),
        default_filter_chain: plan.default_chain.as_ref().map(chain::filter_chain),
        ..Listener::default()
    }
}

fn address(address: &ListenerAddress) -> EnvoyAddress {
    let kind = match address {
        ListenerAddress::Socket { ip, port } => EnvoyAddressKind::SocketAddress(SocketAddress {
            address: ip.to_string(),
            port_specifier: Some(socket_address::PortSpecifier::PortValue(*port)),
            ..SocketAddress::default()
        }),
        ListenerAddress::Pipe(path) => EnvoyAddressKind::Pipe(Pipe { path: path.to_string(), ..Pipe::default() }),
    };
    EnvoyAddress { address: Some(kind) }
}

fn exact_balance() -> ConnectionBalanceConfig {
    use connection_balance_config::{BalanceType, ExactBalance};
    ConnectionBalanceConfig { balance_type: Some(BalanceType::ExactBalance(ExactBalance {})) }
}
