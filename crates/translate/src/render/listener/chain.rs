//! Renders filter chains.

use std::collections::BTreeMap;

use api::envoy::config::core::v3::{CidrRange, Metadata};
use api::envoy::config::listener::v3::{FilterChain, FilterChainMatch};
use api::{Struct, Value, value};

use super::tls;
use crate::network_filters;
use crate::plan::listener::{ChainMatch, ChainPlan, ConfigRef, TransportProtocol};

pub(super) fn filter_chain(plan: &ChainPlan) -> FilterChain {
    FilterChain {
        name: plan.name.to_string(),
        filter_chain_match: plan.matching.as_ref().map(matching),
        filters: plan.filters.iter().map(network_filters::render).collect(),
        metadata: plan.config.as_ref().map(metadata),
        transport_socket: plan.tls.as_deref().map(tls::transport_socket),
        transport_socket_connect_timeout: plan.handshake_timeout,
        ..FilterChain::default()
    }
}

fn matching(plan: &ChainMatch) -> FilterChainMatch {
    let texts = |items: &[model::names::Str]| items.iter().map(|i| i.to_string()).collect();
    let range = |net: &ipnet::IpNet| CidrRange {
        address_prefix: net.addr().to_string(),
        prefix_len: Some(net.prefix_len().into()),
    };
    let transport = match plan.transport {
        None => "",
        Some(TransportProtocol::Raw) => "raw_buffer",
        Some(TransportProtocol::Tls) => "tls",
    };
    FilterChainMatch {
        destination_port: plan.port,
        prefix_ranges: plan.ranges.iter().map(range).collect(),
        server_names: texts(&plan.server_names),
        transport_protocol: transport.into(),
        application_protocols: texts(&plan.alpn),
        ..FilterChainMatch::default()
    }
}

/// The config object, for readers of a config dump.
fn metadata(config: &ConfigRef) -> Metadata {
    let path = crate::names::config_path(config.kind, &config.namespace, &config.name);
    let fields = BTreeMap::from([("config".to_owned(), Value { kind: Some(value::Kind::StringValue(path)) })]);
    Metadata { filter_metadata: BTreeMap::from([("istio".to_owned(), Struct { fields })]), ..Metadata::default() }
}
