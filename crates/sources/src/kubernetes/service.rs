//! Converts a Kubernetes Service into a service of the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::labels::Labels;
use model::names::{ClusterId, Hostname, Namespace, Str};
use model::port::{Port, Protocol};
use model::service::{
    ExportTo, ExternalAddresses, KubernetesService, LabelledNetwork, Registry, Resolution, Service, Target, TargetPort,
    TrafficDistribution, UNSPECIFIED,
};
use model::workload::Transport;

use super::locality::NETWORK;
use super::schema;

const DISTRIBUTION: &str = "networking.istio.io/traffic-distribution";
const NODE_SELECTOR: &str = "traffic.istio.io/nodeSelector";
/// The port of a network's gateway for requests from other networks.
const GATEWAY_PORT: &str = "networking.istio.io/gatewayPort";
const DEFAULT_GATEWAY_PORT: u16 = 15443;
/// Ports of protocols where the server speaks first: protocol detection would wait for the client.
const SERVER_FIRST: [u16; 4] = [25, 53, 3306, 27017];

/// The fields of a Service that are used. Annotations of other tools are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredService {
    pub(super) spec: schema::ServiceSpec,
    pub(super) labels: Labels,
    annotations: BTreeMap<Str, Str>,
    created: i64,
    balancers: Vec<Str>,
}

impl StoredService {
    pub(super) fn of(service: schema::ServiceObject) -> StoredService {
        let annotations = service.metadata.annotations.iter().flatten().filter(|(k, _)| k.contains("istio.io/"));
        let ingress = service.status.load_balancer.ingress.iter();
        let address = |i: &schema::LoadBalancerIngress| if i.ip.is_empty() { i.hostname.clone() } else { i.ip.clone() };
        StoredService {
            labels: schema::labels(&service.metadata),
            annotations: annotations.map(|(k, v)| (k.as_str().into(), v.as_str().into())).collect(),
            created: schema::created(&service.metadata),
            balancers: ingress.map(address).filter(|a| !a.is_empty()).map(Str::from).collect(),
            spec: service.spec,
        }
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(|v| &**v).filter(|v| !v.is_empty())
    }

    /// Whether terminating endpoints keep serving their persistent sessions.
    pub(super) fn keeps_sessions(&self) -> bool {
        let is_set = |key: &str| self.labels.get(key).is_some_and(|v| !v.is_empty());
        is_set("istio.io/persistent-session") || is_set("istio.io/persistent-session-header")
    }

    /// The labels of the nodes whose external addresses serve this NodePort service; `None` without the annotation.
    pub(super) fn node_selector(&self) -> Option<BTreeMap<String, String>> {
        let text = self.annotations.get(NODE_SELECTOR).filter(|_| self.spec.kind == "NodePort")?;
        Some(serde_json::from_str(text).unwrap_or_default())
    }
}

/// Facts from outside of the Service object.
pub(super) struct ServiceContext<'a> {
    pub(super) domain: &'a str,
    pub(super) cluster: &'a ClusterId,
    pub(super) trust_domain: &'a str,
    /// The traffic distribution annotation of the namespace.
    pub(super) traffic_distribution: Option<&'a str>,
    /// External addresses of the selected nodes.
    pub(super) nodes: Vec<Str>,
}

/// The host name of a Service.
pub(super) fn hostname(namespace: &Namespace, name: &str, domain: &str) -> Hostname {
    Hostname::from(format!("{name}.{namespace}.svc.{domain}"))
}

/// The service of the model.
pub(super) fn convert(
    namespace: &Namespace,
    name: &Str,
    stored: &StoredService,
    context: ServiceContext<'_>,
) -> Service {
    let spec = &stored.spec;
    let alias = Some(spec.external_name.as_str()).filter(|n| spec.kind == "ExternalName" && !n.is_empty());
    let addresses = addresses(spec);
    let resolution = match (spec.cluster_ip.as_str(), alias) {
        ("None", _) => Resolution::Passthrough,
        (_, Some(_)) => Resolution::Alias,
        _ => Resolution::ClientSide,
    };
    let export = stored.annotation("networking.istio.io/exportTo").map(|list| list.split(',').map(str::trim));
    Service {
        hostname: hostname(namespace, name, context.domain),
        namespace: namespace.clone(),
        name: name.clone(),
        object_name: name.clone(),
        registry: Registry::Kubernetes,
        ports: spec.ports.iter().map(port).collect(),
        resolution,
        mesh_external: alias.is_some(),
        address: addresses[0].clone(),
        cluster_addresses: vec![(context.cluster.clone(), addresses)],
        auto_ipv4: None,
        auto_ipv6: None,
        export_to: export.map(ExportTo::parse).unwrap_or_default(),
        labels: stored.labels.clone(),
        selector: spec.selector.clone(),
        service_accounts: accounts(namespace, stored, context.trust_domain),
        passthrough_ports: Vec::new(),
        traffic_distribution: distribution(stored, context.traffic_distribution),
        created: stored.created,
        aliases: Vec::new(),
        kubernetes: Some(Arc::new(own(stored, alias, context))),
    }
}

fn own(stored: &StoredService, alias: Option<&str>, context: ServiceContext<'_>) -> KubernetesService {
    let spec = &stored.spec;
    let mut external = if spec.kind == "LoadBalancer" { stored.balancers.clone() } else { Vec::new() };
    external.extend(context.nodes);
    external.extend(spec.external_ips.iter().cloned());
    let by_nodes = stored.node_selector().is_some();
    KubernetesService {
        alias_of: alias.map(Hostname::from),
        targets: spec.ports.iter().map(target).collect(),
        node_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
        publish_not_ready: spec.publish_not_ready_addresses,
        load_balanced: spec.kind == "LoadBalancer",
        external_addresses: match external.is_empty() {
            true => Vec::new(),
            false => vec![ExternalAddresses {
                cluster: context.cluster.clone(),
                addresses: external,
                gateway_of: labelled_network(stored),
                node_ports: spec.ports.iter().filter(|_| by_nodes).map(|p| (p.port, p.node_port)).collect(),
            }],
        },
    }
}

/// The network whose gateway the Service is, and its port for requests from other networks.
fn labelled_network(stored: &StoredService) -> Option<LabelledNetwork> {
    let network = stored.labels.get(NETWORK).filter(|network| !network.is_empty())?.clone();
    let port = stored.labels.get(GATEWAY_PORT).and_then(|port| port.parse().ok()).unwrap_or(DEFAULT_GATEWAY_PORT);
    Some(LabelledNetwork { network, port: stored.spec.ports.iter().any(|own| own.port == port).then_some(port) })
}

/// The cluster IPs, at least one.
fn addresses(spec: &schema::ServiceSpec) -> Vec<Str> {
    match spec.cluster_ip.as_str() {
        "" | "None" => vec![UNSPECIFIED.into()],
        _ if spec.cluster_ips.len() > 1 => spec.cluster_ips.to_vec(),
        _ => vec![spec.cluster_ip.clone()],
    }
}

fn port(port: &schema::ServicePort) -> Port {
    Port { name: port.name.clone(), number: port.port, protocol: protocol(port) }
}

/// Without a targetPort the pod's port has the same number.
fn target(port: &schema::ServicePort) -> TargetPort {
    let target = match &port.target_port {
        Some(schema::IntOrString::String(name)) if !name.is_empty() => Target::Name(name.clone()),
        Some(schema::IntOrString::Int(number)) if *number > 0 => Target::Number(*number),
        _ => Target::Number(port.port),
    };
    TargetPort { target, transport: Transport::parse(&port.protocol) }
}

/// The protocol of a port: its appProtocol, else its name up to the first hyphen.
fn protocol(port: &schema::ServicePort) -> Protocol {
    if port.protocol == "UDP" {
        return Protocol::Udp;
    }
    let word = port.app_protocol.as_deref().unwrap_or(&port.name);
    match port.app_protocol.as_deref() {
        Some("kubernetes.io/h2c") => return Protocol::Http2,
        Some("kubernetes.io/ws") => return Protocol::Http,
        Some("kubernetes.io/wss") => return Protocol::Https,
        _ => {}
    }
    const WEB: &str = "grpc-web";
    if word.get(..WEB.len()).is_some_and(|start| start.eq_ignore_ascii_case(WEB)) {
        return Protocol::GrpcWeb;
    }
    let word = word.split('-').next().unwrap_or_default();
    match Protocol::parse(word) {
        Protocol::Unknown if SERVER_FIRST.contains(&port.port) => Protocol::Tcp,
        known => known,
    }
}

fn accounts(namespace: &Namespace, stored: &StoredService, trust_domain: &str) -> Vec<Str> {
    let listed = |key: &str| stored.annotation(key).into_iter().flat_map(|list| list.split(','));
    let canonical = listed("alpha.istio.io/canonical-serviceaccounts").map(Str::from);
    let kubernetes = listed("alpha.istio.io/kubernetes-serviceaccounts")
        .map(|name| format!("spiffe://{trust_domain}/ns/{namespace}/sa/{name}").into());
    canonical.chain(kubernetes).collect()
}

/// The spec field wins over the service's annotation, and that over the namespace's, even with an unknown value.
fn distribution(stored: &StoredService, of_namespace: Option<&str>) -> TrafficDistribution {
    match stored.spec.traffic_distribution.as_deref() {
        Some("PreferClose" | "PreferSameZone") => return TrafficDistribution::PreferSameZone,
        Some("PreferSameNode") => return TrafficDistribution::PreferSameNode,
        _ => {}
    }
    let annotation = stored.annotation(DISTRIBUTION).or(of_namespace).unwrap_or_default();
    match annotation.to_ascii_lowercase().as_str() {
        "preferclose" | "prefersamezone" => TrafficDistribution::PreferSameZone,
        "prefersamenode" => TrafficDistribution::PreferSameNode,
        _ => TrafficDistribution::Any,
    }
}

/// The traffic distribution annotation of a namespace.
pub(super) fn namespace_distribution(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Option<Str> {
    Some(schema::annotation(meta, DISTRIBUTION)).filter(|v| !v.is_empty()).map(Str::from)
}

#[cfg(test)]
mod tests {
    use model::names::Str;
    use model::port::Protocol;

    use super::super::schema::ServicePort;
    use super::protocol;

    #[test]
    fn protocol_is_taken_from_app_protocol_then_from_the_name() {
        let check = |name: &str, app: Option<&str>, transport: &str, number: u16, expected: Protocol| {
            let port = ServicePort {
                name: name.into(),
                app_protocol: app.map(Str::from),
                protocol: transport.into(),
                port: number,
                ..ServicePort::default()
            };
            assert_eq!(protocol(&port), expected, "{name} {app:?} {transport} {number}");
        };
        check("http-web", None, "TCP", 80, Protocol::Http);
        check("http-web", Some("tcp"), "TCP", 80, Protocol::Tcp);
        check("x", Some("kubernetes.io/h2c"), "TCP", 80, Protocol::Http2);
        check("GRPC-WEB-x", None, "TCP", 80, Protocol::GrpcWeb);
        check("dns", None, "UDP", 53, Protocol::Udp);
        check("", None, "TCP", 3306, Protocol::Tcp);
        check("httpx", None, "TCP", 80, Protocol::Unknown);
    }
}
