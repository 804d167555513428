//! DNS caches of the dynamic forward proxy. A cluster and the filters that use its cache must configure the cache
//! identically, or Envoy rejects the second one.

use api::any;
use api::envoy::config::cluster::v3::cluster::DnsLookupFamily;
use api::envoy::config::core::v3::address::Address as AddressKind;
use api::envoy::config::core::v3::{Address, SocketAddress, TypedExtensionConfig, socket_address};
use api::envoy::extensions::common::dynamic_forward_proxy::v3::DnsCacheConfig;
use api::envoy::extensions::network::dns_resolver::cares::v3::CaresDnsResolverConfig;
use model::names::Str;
use scope::ReadProxy;
use scope::View;

/// Envoy's c-ares DNS resolver.
pub(crate) const CARES: &str = "envoy.network.dns_resolver.cares";

/// IP families that a name is resolved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DnsFamily {
    V4,
    V6,
    All,
}

impl DnsFamily {
    /// The families that this proxy has addresses of. IPv4 only, unless `dual_stack` or the proxy has no IPv4 address.
    pub fn of(proxy: &ReadProxy, dual_stack: bool) -> DnsFamily {
        match (proxy.has_ipv4(), proxy.has_ipv6()) {
            (true, true) if dual_stack => DnsFamily::All,
            (false, true) => DnsFamily::V6,
            _ => DnsFamily::V4,
        }
    }
}

/// One DNS cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DnsCache {
    pub name: Str,
    pub family: DnsFamily,
    pub max_hosts: Option<u32>,
    /// Address and port of the agent's DNS proxy; `None` for Envoy's own resolver.
    pub resolver: Option<(Str, u32)>,
}

impl DnsCache {
    /// The cache of one wildcard host.
    pub fn of_host(host: &str, family: DnsFamily) -> DnsCache {
        DnsCache { name: format!("{host}_dfp_dns_cache").into(), family, max_hosts: None, resolver: None }
    }

    /// The cache for names that belong to no service.
    pub fn for_any_name(view: &View) -> DnsCache {
        /// Envoy's default, set explicitly as upstream does.
        const MAX_HOSTS: u32 = 1024;
        let resolver = view.proxy.flag("DNS_CAPTURE").then(|| resolver_address(view.proxy.meta("DNS_PROXY_ADDR")));
        DnsCache {
            name: "allow_any_dfp_dns_cache".into(),
            family: DnsFamily::of(&view.proxy, view.settings.knobs.dual_stack),
            max_hosts: Some(MAX_HOSTS),
            resolver,
        }
    }
}

fn resolver_address(text: Option<&str>) -> (Str, u32) {
    let parsed = text.and_then(|t| t.rsplit_once(':')).and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = parsed.unwrap_or(("127.0.0.1", 15053));
    let host = if host == "localhost" { "127.0.0.1" } else { host };
    (host.trim_matches(['[', ']']).into(), port)
}

/// The cache as an Envoy message.
pub(crate) fn render(cache: &DnsCache) -> DnsCacheConfig {
    let resolver = cache.resolver.as_ref().map(|(host, port)| {
        let config =
            CaresDnsResolverConfig { resolvers: vec![address(host, *port)], ..CaresDnsResolverConfig::default() };
        TypedExtensionConfig { name: CARES.into(), typed_config: Some(any(&config)) }
    });
    DnsCacheConfig {
        name: cache.name.to_string(),
        dns_lookup_family: lookup_family(cache.family).into(),
        max_hosts: cache.max_hosts,
        typed_dns_resolver_config: resolver,
        ..DnsCacheConfig::default()
    }
}

pub(crate) fn lookup_family(family: DnsFamily) -> DnsLookupFamily {
    match family {
        DnsFamily::V4 => DnsLookupFamily::V4Only,
        DnsFamily::V6 => DnsLookupFamily::V6Only,
        DnsFamily::All => DnsLookupFamily::All,
    }
}

fn address(host: &str, port: u32) -> Address {
    let socket = SocketAddress {
        address: host.into(),
        port_specifier: Some(socket_address::PortSpecifier::PortValue(port)),
        ..SocketAddress::default()
    };
    Address { address: Some(AddressKind::SocketAddress(socket)) }
}
