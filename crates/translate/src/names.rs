//! Names that other systems rely on: clusters, listeners, routes, filter chains.

use model::config::Kind;
use model::names::Hostname;

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
pub const DYNAMIC_DNS_CLUSTER: &str = "AllowAnyDynamicDNSCluster";
/// The cluster of a destination without a host; no such cluster exists.
pub const UNKNOWN_SERVICE: &str = "UnknownService";
/// The gateway name that stands for all sidecars.
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

/// An outbound cluster's name taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboundCluster {
    pub port: u16,
    pub subset: String,
    pub host: Hostname,
    pub form: ClusterForm,
}

/// How an outbound cluster's name is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClusterForm {
    /// `outbound|80|v1|host`: what routes name.
    Plain,
    /// `outbound_.80_.v1_.host`: what gateways pick by the server name of TLS that passes through.
    ServerName,
}

impl ClusterForm {
    /// The name of a cluster.
    pub fn name(self, port: u16, subset: &str, host: &str) -> String {
        match self {
            ClusterForm::Plain => outbound_cluster(port, subset, host),
            ClusterForm::ServerName => server_name(port, subset, host),
        }
    }
}

/// Reads `outbound|port|subset|host` or `outbound_.port_.subset_.host`.
pub fn parse_outbound_cluster(name: &str) -> Option<OutboundCluster> {
    let (form, separator, rest) = if let Some(rest) = name.strip_prefix("outbound|") {
        (ClusterForm::Plain, "|", rest)
    } else {
        (ClusterForm::ServerName, "_.", name.strip_prefix("outbound_.")?)
    };
    let mut parts = rest.splitn(3, separator);
    let port = parts.next()?.parse().ok()?;
    Some(OutboundCluster { port, subset: parts.next()?.into(), host: parts.next()?.into(), form })
}

#[cfg(test)]
mod tests {
    use super::{ClusterForm, parse_outbound_cluster};

    #[test]
    fn both_forms_of_a_name_are_read_back() {
        for form in [ClusterForm::Plain, ClusterForm::ServerName] {
            for subset in ["", "v1"] {
                let name = form.name(80, subset, "cart.shop.svc.cluster.local");
                let cluster = parse_outbound_cluster(&name).expect("a name of our own");
                assert_eq!((cluster.port, cluster.subset.as_str(), cluster.form), (80, subset, form), "{name}");
                assert_eq!(cluster.host, "cart.shop.svc.cluster.local");
            }
        }
    }

    #[test]
    fn other_names_are_no_outbound_clusters() {
        for name in ["inbound|80||", "BlackHoleCluster", "outbound|x||a", "outbound|80|a", "outbound_.80_.a"] {
            assert_eq!(parse_outbound_cluster(name), None, "{name}");
        }
    }
}
