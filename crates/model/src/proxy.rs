//! A proxy, from the node of its first discovery request; parsed once per stream.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use api::envoy::config::core::v3::{Locality as EnvoyLocality, Node};
use api::{Struct, Value, value};

use crate::endpoint::Locality;
use crate::labels::Labels;
use crate::names::{ClusterId, Namespace, NetworkId, Str};
use crate::printable::clipped;
use crate::workload::{ContainerPort, Transport, Workload};

/// Labels of region, zone and subzone.
const TOPOLOGY: [&str; 3] =
    ["topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/subzone"];
/// Maximum number of bytes of the node id in an error message.
const LONGEST_SHOWN: usize = 200;
const NETWORK_LABEL: &str = "topology.istio.io/network";
/// Metadata that an agent sets to `true` if its proxy has no source of certificates: neither files nor a CA.
pub const NO_CERTIFICATES: &str = "PILOTAGE_NO_CERTIFICATES";
/// Header of a stream by which an agent takes that back: its proxy has certificates now.
pub const CERTIFICATES_FOUND: &str = "x-pilotage-certificates-found";
/// Metadata that an agent sets to `true` if it makes request metrics from its Envoy's access log.
pub const REQUEST_METRICS: &str = "PILOTAGE_REQUEST_METRICS";
/// The cluster in the bootstrap of such an Envoy to which the log is sent.
pub const REQUEST_METRICS_CLUSTER: &str = "pilotage-requests";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProxyKind {
    Sidecar,
    Router,
    Waypoint,
    Ztunnel,
}

/// How traffic is redirected to the proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Interception {
    #[default]
    Redirect,
    Tproxy,
    /// No redirection: applications call the proxy's listeners.
    None,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Proxy {
    pub kind: ProxyKind,
    /// The third part of the node id, usually `name.namespace`.
    pub id: Str,
    pub ips: Vec<IpAddr>,
    pub namespace: Namespace,
    /// `namespace.svc.cluster.local`, or empty.
    pub domain: Str,
    pub cluster: ClusterId,
    /// Envoy's `--service-cluster`, or empty.
    pub service_cluster: Str,
    pub network: NetworkId,
    pub locality: Locality,
    pub labels: Labels,
    /// Labels that override those of the workload.
    pub static_labels: Labels,
    pub interception: Interception,
    /// Named ports of its pod, from the metadata that the injector set.
    pub pod_ports: Vec<ContainerPort>,
    /// Metadata values that are strings, booleans or numbers, as strings.
    pub metadata: BTreeMap<Str, Str>,
    /// The proxy's own ProxyConfig as JSON, or empty.
    pub proxy_config: Str,
    /// Extensions that this Envoy was built with; empty if unknown.
    pub extensions: BTreeSet<Str>,
    /// Envoy's version as `major.minor.patch`; empty if unknown.
    pub envoy_version: Str,
}

/// Why a node is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidNode(pub String);

impl Proxy {
    /// Parses the node id `type~ip~id~domain` and the metadata.
    pub fn from_node(node: &Node) -> Result<Proxy, InvalidNode> {
        let parts: Vec<&str> = node.id.split('~').collect();
        let [kind, ip, id, domain] = parts[..] else {
            return Err(InvalidNode(format!(
                "node id {:?} does not have four parts separated by ~",
                clipped(&node.id, LONGEST_SHOWN)
            )));
        };
        let metadata = Metadata(node.metadata.as_ref());
        let kind = kind_of(kind)
            .ok_or_else(|| InvalidNode(format!("unknown node type {:?}", clipped(kind, LONGEST_SHOWN))))?;
        let ips = addresses(ip, &metadata)?;
        let labels = metadata.labels("LABELS");
        let locality = locality(node.locality.as_ref(), &labels);
        let namespace = metadata.text("NAMESPACE").map_or_else(|| namespace_of(id, domain), Namespace::from);
        Ok(Proxy {
            kind,
            id: id.into(),
            ips,
            namespace,
            domain: domain.into(),
            service_cluster: node.cluster.as_str().into(),
            cluster: metadata.text("CLUSTER_ID").unwrap_or_default().into(),
            network: metadata.text("NETWORK").unwrap_or_default().into(),
            labels: with_topology(&labels, &locality, &metadata),
            static_labels: metadata.labels("STATIC_LABELS"),
            locality,
            interception: match metadata.text("INTERCEPTION_MODE") {
                Some("TPROXY") => Interception::Tproxy,
                Some("NONE") => Interception::None,
                _ => Interception::Redirect,
            },
            pod_ports: pod_ports(&metadata),
            proxy_config: metadata.json("PROXY_CONFIG"),
            metadata: metadata.scalars(),
            extensions: node.extensions.iter().map(|e| Str::from(e.name.as_str())).collect(),
            envoy_version: envoy_version(node).into(),
        })
    }

    pub fn meta(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(|v| &**v)
    }

    /// Whether a metadata value is true by Go's `strconv.ParseBool`.
    pub fn flag(&self, key: &str) -> bool {
        matches!(self.meta(key), Some("true" | "1" | "t" | "T" | "TRUE" | "True"))
    }

    /// Whether the proxy has this Istio version or a newer one. An unknown version counts as newest.
    pub fn is_at_least(&self, major: u32, minor: u32) -> bool {
        let mut parts = self.meta("ISTIO_VERSION").unwrap_or_default().split('.').map(leading_number);
        match (parts.next().flatten(), parts.next().flatten()) {
            (Some(own_major), Some(own_minor)) => (own_major, own_minor) >= (major, minor),
            _ => true,
        }
    }

    /// The proxy with the labels of its workload, which override those of the node metadata.
    #[must_use]
    pub fn running_as(&self, workload: &Workload) -> Proxy {
        let own = self.static_labels.iter().map(|(k, v)| (k.clone(), v.clone()));
        let known = workload.labels.iter().map(|(k, v)| (k.clone(), v.clone()));
        let mut labels: Labels = own.chain(known).collect();
        let placed = TOPOLOGY.iter().any(|key| labels.get(key).is_some());
        let locality = if placed { locality(None, &labels) } else { self.locality.clone() };
        let place =
            [(TOPOLOGY[0], locality.region()), (TOPOLOGY[1], locality.zone()), (TOPOLOGY[2], locality.sub_zone())];
        for (key, value) in place.into_iter().filter(|(_, value)| !value.is_empty()) {
            labels = labels.with(key, value);
        }
        if labels.get(NETWORK_LABEL).is_none_or(|n| n.is_empty()) && !self.network.is_empty() {
            labels = labels.with(NETWORK_LABEL, self.network.text().clone());
        }
        Proxy { labels, locality, ..self.clone() }
    }

    pub fn has_ipv4(&self) -> bool {
        self.ips.iter().any(IpAddr::is_ipv4)
    }

    pub fn has_ipv6(&self) -> bool {
        self.ips.iter().any(IpAddr::is_ipv6)
    }

    pub fn is_dual_stack(&self) -> bool {
        self.has_ipv4() && self.has_ipv6()
    }
}

/// The digits that a text begins with.
fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

fn kind_of(text: &str) -> Option<ProxyKind> {
    match text {
        "sidecar" => Some(ProxyKind::Sidecar),
        // Ingress proxies of Pilot 0.8 have their own type.
        "router" | "ingress" => Some(ProxyKind::Router),
        "waypoint" => Some(ProxyKind::Waypoint),
        "ztunnel" => Some(ProxyKind::Ztunnel),
        _ => None,
    }
}

/// All addresses of the proxy: that of the node id first, then those of the metadata.
fn addresses(ip: &str, metadata: &Metadata<'_>) -> Result<Vec<IpAddr>, InvalidNode> {
    let listed = metadata.text("INSTANCE_IPS").unwrap_or_default();
    let mut found: Vec<IpAddr> = listed.split(',').filter_map(|text| text.trim().parse().ok()).collect();
    if let Ok(own) = ip.parse::<IpAddr>()
        && !found.contains(&own)
    {
        found.insert(0, own);
    }
    if found.is_empty() {
        return Err(InvalidNode(format!("node id has no IP address, got {:?}", clipped(ip, LONGEST_SHOWN))));
    }
    Ok(found)
}

/// The namespace in the id `NAME.NAMESPACE`, else in the domain `NAMESPACE.svc.DOMAIN`. An id that begins with an address,
/// as `10.0.0.1.service.consul` of Pilot 0.8, has no namespace: such a proxy is in that of registries without one.
fn namespace_of(id: &str, domain: &str) -> Namespace {
    if !begins_with_address(id) {
        return id.split_once('.').map_or_else(Namespace::default, |(_, namespace)| Namespace::from(namespace));
    }
    let of_domain = domain.split_once(".svc.").map(|(namespace, _)| namespace);
    Namespace::from(of_domain.filter(|namespace| !namespace.is_empty()).unwrap_or("default"))
}

fn begins_with_address(id: &str) -> bool {
    let four = id.splitn(5, '.').take(4).collect::<Vec<_>>().join(".");
    id.parse::<IpAddr>().is_ok() || four.parse::<Ipv4Addr>().is_ok()
}

/// The locality from the workload's labels, or else from the node.
fn locality(node: Option<&EnvoyLocality>, labels: &Labels) -> Locality {
    let [region, zone, sub_zone] = TOPOLOGY.map(|key| labels.get(key));
    if region.is_some() || zone.is_some() || sub_zone.is_some() {
        let known = |text: Option<&Str>| text.filter(|t| !t.is_empty()).cloned();
        return Locality { region: known(region), zone: known(zone), sub_zone: known(sub_zone) };
    }
    // Label values may not contain slashes, so this label uses dots.
    if let Some(text) = labels.get("istio-locality").filter(|text| !text.is_empty()) {
        return Locality::parse(&text.replace('.', "/"));
    }
    let node = node.cloned().unwrap_or_default();
    Locality { region: part(&node.region), zone: part(&node.zone), sub_zone: part(&node.sub_zone) }
}

/// The labels with topology labels added, so that rules can select and rank by locality.
fn with_topology(labels: &Labels, locality: &Locality, metadata: &Metadata<'_>) -> Labels {
    let [region, zone, sub_zone] = TOPOLOGY;
    let place = [
        (region, locality.region()),
        (zone, locality.zone()),
        (sub_zone, locality.sub_zone()),
        ("topology.istio.io/cluster", metadata.text("CLUSTER_ID").unwrap_or_default()),
        ("kubernetes.io/hostname", metadata.text("NODE_NAME").unwrap_or_default()),
    ];
    let network = metadata.text("NETWORK").filter(|_| labels.get(NETWORK_LABEL).is_none_or(|n| n.is_empty()));
    let own = labels.iter().map(|(k, v)| (k.clone(), v.clone()));
    let known = place.into_iter().filter(|(_, value)| !value.is_empty()).chain(network.map(|n| (NETWORK_LABEL, n)));
    own.chain(known.map(|(k, v)| (Str::from(k), Str::from(v)))).collect()
}

/// Parses `POD_PORTS`: a list, or a string that contains one as JSON.
fn pod_ports(metadata: &Metadata<'_>) -> Vec<ContainerPort> {
    let ports = match metadata.get("POD_PORTS") {
        Some(value::Kind::StringValue(text)) => serde_json::from_str(text).unwrap_or_default(),
        Some(other) => to_json(other),
        None => serde_json::Value::Null,
    };
    let port = |port: &serde_json::Value| {
        let number = &port["containerPort"];
        // Numbers in a protobuf Struct are floats.
        let number = number.as_u64().or_else(|| number.as_f64().map(|n| n as u64))?;
        Some(ContainerPort {
            name: port["name"].as_str().unwrap_or_default().into(),
            transport: Transport::parse(port["protocol"].as_str().unwrap_or_default()),
            number: u16::try_from(number).ok()?,
        })
    };
    ports.as_array().into_iter().flatten().filter_map(port).collect()
}

fn part(text: &str) -> Option<Str> {
    (!text.is_empty()).then(|| text.into())
}

fn envoy_version(node: &Node) -> String {
    use api::envoy::config::core::v3::node::UserAgentVersionType;
    match &node.user_agent_version_type {
        Some(UserAgentVersionType::UserAgentBuildVersion(build)) => build
            .version
            .as_ref()
            .map(|v| format!("{}.{}.{}", v.major_number, v.minor_number, v.patch))
            .unwrap_or_default(),
        Some(UserAgentVersionType::UserAgentVersion(text)) => text.clone(),
        None => String::new(),
    }
}

struct Metadata<'a>(Option<&'a Struct>);

impl<'a> Metadata<'a> {
    fn get(&self, key: &str) -> Option<&'a value::Kind> {
        self.0?.fields.get(key)?.kind.as_ref()
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        match self.get(key)? {
            value::Kind::StringValue(text) if !text.is_empty() => Some(text),
            _ => None,
        }
    }

    fn labels(&self, key: &str) -> Labels {
        let Some(value::Kind::StructValue(map)) = self.get(key) else {
            return Labels::default();
        };
        map.fields.iter().filter_map(|(k, v)| Some((k.as_str(), scalar(v)?))).collect()
    }

    fn scalars(&self) -> BTreeMap<Str, Str> {
        let fields = self.0.map(|s| s.fields.iter()).into_iter().flatten();
        fields.filter_map(|(k, v)| Some((Str::from(k.as_str()), Str::from(scalar(v)?)))).collect()
    }

    fn json(&self, key: &str) -> Str {
        self.get(key).map_or_else(|| "".into(), |kind| to_json(kind).to_string().into())
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value.kind.as_ref()? {
        value::Kind::StringValue(text) => Some(text.clone()),
        value::Kind::BoolValue(flag) => Some(flag.to_string()),
        value::Kind::NumberValue(number) => Some(number.to_string()),
        _ => None,
    }
}

fn to_json(kind: &value::Kind) -> serde_json::Value {
    let of = |v: &Value| v.kind.as_ref().map_or(serde_json::Value::Null, to_json);
    match kind {
        value::Kind::NullValue(_) => serde_json::Value::Null,
        value::Kind::NumberValue(n) => serde_json::json!(n),
        value::Kind::StringValue(s) => serde_json::json!(s),
        value::Kind::BoolValue(b) => serde_json::json!(b),
        value::Kind::StructValue(s) => s.fields.iter().map(|(k, v)| (k.clone(), of(v))).collect(),
        value::Kind::ListValue(l) => l.values.iter().map(of).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::{EnvoyLocality, Node, Proxy, ProxyKind, Struct, Value, value};

    fn proxy(id: &str) -> Result<Proxy, super::InvalidNode> {
        Proxy::from_node(&Node { id: id.into(), ..Node::default() })
    }

    #[test]
    fn node_id_gives_kind_address_and_namespace() {
        let p = proxy("sidecar~10.0.0.1~cart-1.shop~shop.svc.cluster.local").expect("a good node");
        assert_eq!((p.kind, &*p.id, p.namespace.as_str()), (ProxyKind::Sidecar, "cart-1.shop", "shop"));
    }

    #[test]
    fn namespace_is_never_made_of_an_address() {
        for (id, namespace) in [
            ("10.0.0.1.service.consul~service.consul", "default"),
            ("10.0.0.1~", "default"),
            ("fd00::1~", "default"),
            ("10.0.0.1~shop.svc.cluster.local", "shop"),
            ("cart-1.shop~service.consul", "shop"),
            ("10.shop~", "shop"),
        ] {
            let proxy = proxy(&format!("sidecar~10.0.0.1~{id}")).expect("a good node");
            assert_eq!(proxy.namespace.as_str(), namespace, "{id}");
        }
    }

    fn of_labels(labels: &[(&str, &str)]) -> Proxy {
        let text = |v: &str| Value { kind: Some(value::Kind::StringValue(v.to_owned())) };
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), text(v))).collect();
        let labels = Value { kind: Some(value::Kind::StructValue(Struct { fields: labels })) };
        let fields = [("LABELS".to_owned(), labels), ("NETWORK".to_owned(), text("n1"))];
        Proxy::from_node(&Node {
            id: "sidecar~10.0.0.1~a.b~c".into(),
            metadata: Some(Struct { fields: fields.into_iter().collect() }),
            locality: Some(EnvoyLocality { region: "r".into(), zone: "z".into(), sub_zone: "s".into() }),
            ..Node::default()
        })
        .expect("a good node")
    }

    #[test]
    fn locality_labels_override_the_locality_of_the_node() {
        assert_eq!(of_labels(&[]).locality.to_string(), "r/z/s");
        assert_eq!(of_labels(&[("topology.kubernetes.io/region", "r2")]).locality.to_string(), "r2");
        assert_eq!(of_labels(&[("istio-locality", "r3.z3")]).locality.to_string(), "r3/z3");
    }

    #[test]
    fn topology_labels_are_added() {
        let proxy = of_labels(&[("app", "cart")]);
        let found: Vec<_> = proxy.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let expected = [
            "app=cart",
            "topology.istio.io/network=n1",
            "topology.istio.io/subzone=s",
            "topology.kubernetes.io/region=r",
            "topology.kubernetes.io/zone=z",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn malformed_node_is_an_error() {
        for id in ["", "sidecar", "sidecar~~a~b", "sidecar~1.2.3.4~a", "cart~1.2.3.4~a~b", "sidecar~x~a.b~c"] {
            assert!(proxy(id).is_err(), "{id}");
        }
    }
}
