//! Network filters, one file each: when the filter is added, what its plan holds, and how it is rendered.
//! To add a filter: a file, a variant of `NetworkFilter`, and a row in `BEFORE` where Envoy runs it.

mod authorization;
mod extension;
pub(crate) mod http_connection_manager;
pub(crate) mod metadata_exchange;
mod mongo;
mod mysql;
mod redis;
mod sni_forward_proxy;
mod stats;
pub(crate) mod tcp_proxy;

use api::Any;
use api::envoy::config::listener::v3::{Filter, filter};
use model::hashed::Hashed;
use model::names::Str;
use model::port::Protocol;
use model::settings::Knobs;
use scope::View;

use crate::dns_cache::DnsCache;
use crate::extension::Extension;
use crate::listener_side::ListenerSide;
use crate::security::authorization::AuthorizationFilter;
use crate::security::policies::WorkloadPolicies;
use crate::telemetry::metrics::StatsFilter;
use http_connection_manager::HttpConnectionManager;
use tcp_proxy::TcpProxy;

/// One filter of a filter chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NetworkFilter {
    MetadataExchange,
    Authorization(Hashed<AuthorizationFilter>),
    Extension(Extension),
    Stats(Hashed<StatsFilter>),
    SniForwardProxy { cache: DnsCache, port: u32 },
    Mongo { stat_prefix: Str },
    MySql { stat_prefix: Str },
    Redis { stat_prefix: Str, cluster: Str },
    TcpProxy(TcpProxy),
    Http(Box<HttpConnectionManager>),
}

/// What a filter's `add` function may look at.
pub(crate) struct NetworkFilterInput<'a> {
    pub view: &'a View,
    pub side: ListenerSide,
    pub policies: &'a WorkloadPolicies,
    /// Stats filters of listeners on this side.
    pub stats: &'a [Hashed<StatsFilter>],
    /// The service port.
    pub port: u32,
    pub end: ChainEnd,
}

/// What the last filter of a chain does. It decides which filters enforce policies and record metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChainEnd {
    /// TCP to a known destination: network filters enforce policies and record metrics.
    Bytes,
    /// TLS passed through: metrics only, because policies cannot see inside.
    Sealed,
    /// HTTP: the connection manager's HTTP filters do both.
    Http,
    /// TCP to an unknown destination, or to none: metrics only.
    Unknown,
}

/// Appends a filter if it applies.
type AddNetworkFilters = fn(&NetworkFilterInput<'_>, &mut Vec<NetworkFilter>);

/// Filters before the last one of a chain, in execution order.
const BEFORE: &[AddNetworkFilters] = &[
    metadata_exchange::add,
    authorization::add_custom,
    extension::add_checks,
    authorization::add,
    extension::add_rest,
    stats::add,
];

/// All filters of a chain that ends in `last`.
pub(crate) fn chain(input: &NetworkFilterInput<'_>, last: Vec<NetworkFilter>) -> Vec<NetworkFilter> {
    let mut filters = Vec::with_capacity(last.len());
    for add in BEFORE {
        add(input, &mut filters);
    }
    filters.extend(last);
    filters
}

/// The last filters of a TCP chain: the TCP proxy, after or replaced by a filter for the port's protocol.
pub(crate) fn for_protocol(knobs: &Knobs, protocol: Protocol, proxy: TcpProxy) -> Vec<NetworkFilter> {
    let stat_prefix = proxy.stat_prefix.clone();
    match protocol {
        Protocol::Mongo if knobs.mongo_filter => {
            vec![NetworkFilter::Mongo { stat_prefix }, NetworkFilter::TcpProxy(proxy)]
        }
        Protocol::MySql if knobs.mysql_filter => {
            vec![NetworkFilter::MySql { stat_prefix }, NetworkFilter::TcpProxy(proxy)]
        }
        // The Redis proxy forwards by itself.
        Protocol::Redis if knobs.redis_filter => {
            vec![NetworkFilter::Redis { stat_prefix, cluster: proxy.first_cluster().clone() }]
        }
        _ => vec![NetworkFilter::TcpProxy(proxy)],
    }
}

pub(crate) fn render(filter: &NetworkFilter) -> Filter {
    match filter {
        NetworkFilter::MetadataExchange => metadata_exchange::render(),
        NetworkFilter::Authorization(check) => authorization::render(check),
        NetworkFilter::Extension(extension) => extension::render(extension),
        NetworkFilter::Stats(plan) => stats::render(plan),
        NetworkFilter::SniForwardProxy { cache, port } => sni_forward_proxy::render(cache, *port),
        NetworkFilter::Mongo { stat_prefix } => mongo::render(stat_prefix),
        NetworkFilter::MySql { stat_prefix } => mysql::render(stat_prefix),
        NetworkFilter::Redis { stat_prefix, cluster } => redis::render(stat_prefix, cluster),
        NetworkFilter::TcpProxy(plan) => tcp_proxy::render(plan),
        NetworkFilter::Http(plan) => http_connection_manager::render(plan),
    }
}

fn named(name: &str, config: Any) -> Filter {
    Filter { name: name.into(), config_type: Some(filter::ConfigType::TypedConfig(config)) }
}
