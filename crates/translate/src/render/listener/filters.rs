//! Renders listener filters.

use api::envoy::config::listener::v3::listener_filter_chain_match_predicate::{MatchSet, Rule};
use api::envoy::config::listener::v3::{
    ListenerFilter as EnvoyFilter, ListenerFilterChainMatchPredicate as Predicate, listener_filter,
};
use api::envoy::extensions::filters::listener::http_inspector::v3::HttpInspector;
use api::envoy::extensions::filters::listener::original_dst::v3::OriginalDst;
use api::envoy::extensions::filters::listener::original_src::v3::OriginalSrc;
use api::envoy::extensions::filters::listener::proxy_protocol::v3::ProxyProtocol;
use api::envoy::extensions::filters::listener::tls_inspector::v3::TlsInspector;
use api::envoy::r#type::v3::Int32Range;
use api::{Any, any};

use crate::plan::listener::{InspectedPorts, ListenerFilter};

/// The packet mark by which iptables rules recognize the proxy's own traffic.
const PROXY_MARK: u32 = 1337;
/// Envoy's default is 64 KiB per connection.
const INITIAL_BUFFER: u32 = 512;

pub(super) fn listener_filter(filter: &ListenerFilter) -> EnvoyFilter {
    match filter {
        ListenerFilter::OriginalDst => {
            named("envoy.filters.listener.original_dst", any(&OriginalDst {}), &InspectedPorts::All)
        }
        ListenerFilter::OriginalSrc => {
            let config = OriginalSrc { mark: PROXY_MARK, ..OriginalSrc::default() };
            named("envoy.filters.listener.original_src", any(&config), &InspectedPorts::All)
        }
        ListenerFilter::ProxyProtocol => {
            named("envoy.filters.listener.proxy_protocol", any(&ProxyProtocol::default()), &InspectedPorts::All)
        }
        ListenerFilter::TlsInspector(ports) => {
            let config = TlsInspector { initial_read_buffer_size: Some(INITIAL_BUFFER), ..TlsInspector::default() };
            named("envoy.filters.listener.tls_inspector", any(&config), ports)
        }
        ListenerFilter::HttpInspector(ports) => {
            named("envoy.filters.listener.http_inspector", any(&HttpInspector::default()), ports)
        }
    }
}

fn named(name: &str, config: Any, ports: &InspectedPorts) -> EnvoyFilter {
    EnvoyFilter {
        name: name.into(),
        filter_disabled: disabled(ports),
        config_type: Some(listener_filter::ConfigType::TypedConfig(config)),
    }
}

fn disabled(ports: &InspectedPorts) -> Option<Predicate> {
    match ports {
        InspectedPorts::All => None,
        InspectedPorts::AllBut(ports) => Some(any_of(ports)),
        InspectedPorts::Only(ports) => Some(Predicate { rule: Some(Rule::NotMatch(Box::new(any_of(ports)))) }),
    }
}

fn any_of(ports: &[u32]) -> Predicate {
    let mut rules: Vec<Predicate> = ports.iter().map(|port| Predicate { rule: Some(one(*port)) }).collect();
    if rules.len() == 1 {
        return rules.remove(0);
    }
    Predicate { rule: Some(Rule::OrMatch(MatchSet { rules })) }
}

/// The end of the range is exclusive.
fn one(port: u32) -> Rule {
    let start = i32::try_from(port).unwrap_or_default();
    Rule::DestinationPortRange(Int32Range { start, end: start.saturating_add(1) })
}
