//! Names that other systems rely on: clusters, listeners, routes, filter chains.

use std::fmt;

use model::config::Kind;
use model::names::{Hostname, Str};

pub const BLACK_HOLE_CLUSTER: &str = "BlackHoleCluster";
pub const PASSTHROUGH_CLUSTER: &str = "PassthroughCluster";
pub const INBOUND_PASSTHROUGH_CLUSTER: &str = "InboundPassthroughCluster";
/// Upstream of unknown hosts under ALLOW_ANY_DYNAMIC_DNS.
pub const ALLOW_ANY_DYNAMIC_DNS_CLUSTER: &str = "AllowAnyDynamicDNSCluster";
/// The agent's SDS socket for secrets of other providers.
pub const EXTERNAL_SDS_CLUSTER: &str = "sds-external";
pub const VIRTUAL_OUTBOUND: &str = "virtualOutbound";
pub const VIRTUAL_INBOUND: &str = "virtualInbound";
/// The outbound filter chain for connections that no other chain matches.
pub const PASSTHROUGH_CHAIN: &str = "PassthroughFilterChain";
pub const VIRTUAL_OUTBOUND_BLACKHOLE_CHAIN: &str = "virtualOutbound-blackhole";
pub const VIRTUAL_OUTBOUND_CATCH_ALL_CHAIN: &str = "virtualOutbound-catchall-tcp";
pub const VIRTUAL_INBOUND_BLACKHOLE_CHAIN: &str = "virtualInbound-blackhole";
pub const VIRTUAL_INBOUND_CATCH_ALL_HTTP_CHAIN: &str = "virtualInbound-catchall-http";
/// Virtual host and route for unknown hosts, by outbound traffic policy.
pub const ALLOW_ANY: &str = "allow_any";
pub const ALLOW_ANY_DYNAMIC_DNS: &str = "allow_any_dynamic_dns";
pub const BLOCK_ALL: &str = "block_all";
/// The cluster of a destination without a host; no such cluster exists.
pub const UNKNOWN_SERVICE: &str = "UnknownService";
/// The gateway name for all sidecars.
pub const MESH_GATEWAY: &str = "mesh";
/// The route table of the mesh's forward proxy port.
pub const HTTP_PROXY: &str = "http_proxy";
/// Prefix of the route table name of a listener on a Unix socket.
pub const UNIX_PREFIX: &str = "unix://";

/// `0.0.0.0_80`
pub fn listener(bind: &str, port: u32) -> String {
    format!("{bind}_{port}")
}

/// A config object's path in Envoy metadata: `/apis/networking.istio.io/v1/namespaces/shop/virtual-service/cart`
pub fn config_path(kind: Kind, namespace: &str, name: &str) -> String {
    let (group, version) = (kind.group(), kind.versions()[0]);
    format!("/apis/{group}/{version}/namespaces/{namespace}/{}/{name}", kebab(kind.as_str()))
}

/// `VirtualService` as `virtual-service`.
fn kebab(kind: &str) -> String {
    let mut text = String::with_capacity(kind.len() + 2);
    for letter in kind.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

/// `outbound|80|v1|cart.shop.svc.cluster.local`
pub fn outbound_cluster(port: u16, subset: &str, host: &str) -> String {
    format!("outbound|{port}|{subset}|{host}")
}

/// `inbound|8080||`
pub fn inbound_cluster(port: u32) -> String {
    format!("inbound|{port}||")
}

/// SNI of mesh clients: `outbound_.80_.v1_.cart.shop.svc.cluster.local`
pub fn server_name(port: u16, subset: &str, host: &str) -> String {
    format!("outbound_.{port}_.{subset}_.{host}")
}

/// The identity of an outbound cluster. Its name is printed from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OutboundCluster {
    pub port: u16,
    /// Empty for the whole service.
    pub subset: Str,
    pub host: Hostname,
    pub form: ClusterForm,
}

/// The form of an outbound cluster's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClusterForm {
    /// `outbound|80|v1|host`: referred to by routes.
    Plain,
    /// `outbound_.80_.v1_.host`: selected by SNI, on gateways with AUTO_PASSTHROUGH.
    ServerName,
}

impl OutboundCluster {
    /// The cluster's SNI: its name in the other form.
    pub fn server_name(&self) -> String {
        server_name(self.port, &self.subset, &self.host)
    }
}

impl fmt::Display for OutboundCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OutboundCluster { port, subset, host, form } = self;
        match form {
            ClusterForm::Plain => write!(f, "outbound|{port}|{subset}|{host}"),
            ClusterForm::ServerName => write!(f, "outbound_.{port}_.{subset}_.{host}"),
        }
    }
}

/// Parses `outbound|port|subset|host` or `outbound_.port_.subset_.host`, as clients request endpoints by name.
pub fn parse_outbound_cluster(name: &str) -> Option<OutboundCluster> {
    let (form, separator, rest) = if let Some(rest) = name.strip_prefix("outbound|") {
        (ClusterForm::Plain, "|", rest)
    } else {
        (ClusterForm::ServerName, "_.", name.strip_prefix("outbound_.")?)
    };
    let mut parts = rest.splitn(3, separator);
    // Only names that `Display` prints.
    let port = parts.next().filter(|port| *port == "0" || !port.starts_with(['0', '+']))?.parse().ok()?;
    Some(OutboundCluster { port, subset: parts.next()?.into(), host: parts.next()?.into(), form })
}

#[cfg(test)]
mod tests {
    use super::{ClusterForm, OutboundCluster, parse_outbound_cluster};

    #[test]
    fn both_forms_of_a_name_parse_back() {
        for form in [ClusterForm::Plain, ClusterForm::ServerName] {
            for subset in ["", "v1"] {
                let host = "cart.shop.svc.cluster.local".into();
                let cluster = OutboundCluster { port: 80, subset: subset.into(), host, form };
                assert_eq!(parse_outbound_cluster(&cluster.to_string()), Some(cluster));
            }
        }
    }

    #[test]
    fn other_names_do_not_parse() {
        for name in [
            "inbound|80||",
            "BlackHoleCluster",
            "outbound|x||a",
            "outbound|080||a",
            "outbound|+80||a",
            "outbound|80|a",
            "outbound_.80_.a",
        ] {
            assert_eq!(parse_outbound_cluster(name), None, "{name}");
        }
    }
}
