//! Two clusters with two networks: each has an east-west gateway, and both gateways are Services of the same name.

use std::sync::Arc;

use api::envoy::config::core::v3::{Node, address::Address, socket_address::PortSpecifier};
use api::envoy::config::endpoint::v3::{ClusterLoadAssignment, lb_endpoint::HostIdentifier};
use api::{Struct, TypeUrl, Value as Field, value};
use model::change::{Batch, SourceId};
use model::proxy::Proxy;
use model::settings::Settings;
use model::snapshot::Snapshot;
use prost::Message;
use scope::{View, inbound};
use serde_json::{Value, json};
use sources::kubernetes::join::{ClusterOptions, ClusterState};
use sources::kubernetes::schema::ClusterObject;
use translate::recipe;

/// A cluster with its network, the address of the gateway's load balancer, and the addresses of a pod.
struct Site {
    cluster: &'static str,
    balancer: &'static str,
    pod: &'static str,
    /// Port of the gateway's Service and its label, if it is not the default.
    port: u16,
}

const SITES: [Site; 2] = [
    Site { cluster: "east", balancer: "192.0.2.1", pod: "10.1.0.1", port: 15443 },
    Site { cluster: "west", balancer: "192.0.2.2", pod: "10.2.0.1", port: 15444 },
];

fn objects(site: &Site) -> Vec<Value> {
    let Site { cluster, balancer, pod, port } = site;
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "istio-system", "labels": {"topology.istio.io/network": cluster}}}),
        json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "east-west", "namespace": "istio-system", "labels": {
                "topology.istio.io/network": cluster, "networking.istio.io/gatewayPort": port.to_string()}},
            "spec": {"type": "LoadBalancer", "clusterIP": "10.9.0.1", "ports": [{"name": "tls", "port": port}]},
            "status": {"loadBalancer": {"ingress": [{"ip": balancer}]}}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"clusterIP": "10.9.0.2", "selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}]}}),
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web-1", "namespace": "shop",
                "labels": {"app": "web", "security.istio.io/tlsMode": "istio"}},
            "status": {"phase": "Running", "podIP": pod, "podIPs": [{"ip": pod}]}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
            "ports": [{"name": "http", "port": 80}],
            "endpoints": [{"addresses": [pod], "conditions": {"ready": true},
                "targetRef": {"kind": "Pod", "name": "web-1", "namespace": "shop"}}]}),
    ]
}

/// What the source of a site sends.
fn batch(site: &Site, settings: &Settings) -> Batch {
    let is_primary = site.cluster == "east";
    let options = ClusterOptions { cluster: site.cluster.into(), is_primary, ..ClusterOptions::own(settings) };
    let mut cluster = ClusterState::new(options, settings.clone());
    for object in objects(site) {
        cluster.apply(ClusterObject::read(object).expect("the objects above are well formed"));
    }
    Batch { source: SourceId(format!("Kubernetes/{}", site.cluster).into()), changes: cluster.changes() }
}

/// Addresses and ports of the endpoints that a proxy in this network gets.
fn endpoints(world: &Arc<Snapshot>, network: &str) -> Vec<String> {
    let text = |text: &str| Field { kind: Some(value::Kind::StringValue(text.to_owned())) };
    let fields = [("NETWORK".to_owned(), text(network)), ("CLUSTER_ID".to_owned(), text(network))];
    let metadata = Struct { fields: fields.into_iter().collect() };
    let id = "sidecar~10.5.0.1~client-1.shop~shop.svc.cluster.local".to_owned();
    let node = Node { id, metadata: Some(metadata), ..Node::default() };
    let proxy = Arc::new(Proxy::from_node(&node).expect("a good node"));
    let view = View::new(world, &proxy, inbound::targets(world, &proxy));
    let name = "outbound|80||web.shop.svc.cluster.local";
    let rendered = recipe(&view, &TypeUrl::ENDPOINT, name, &mut Vec::new()).expect("a load assignment").render();
    let assignment = ClusterLoadAssignment::decode(&rendered.body.joined()[..]).expect("a load assignment");
    let all = assignment.endpoints.iter().flat_map(|locality| &locality.lb_endpoints);
    let mut found: Vec<String> = all
        .filter_map(|endpoint| {
            let Some(HostIdentifier::Endpoint(endpoint)) = &endpoint.host_identifier else { return None };
            let Some(Address::SocketAddress(socket)) = &endpoint.address.as_ref()?.address else { return None };
            let Some(PortSpecifier::PortValue(port)) = socket.port_specifier else { return None };
            Some(format!("{}:{port}", socket.address))
        })
        .collect();
    found.sort();
    found
}

#[test]
fn gateways_of_the_same_name_keep_the_networks_of_their_clusters() {
    let settings = Settings::default();
    let batches = SITES.iter().map(|site| batch(site, &settings)).collect();
    let world = Arc::new(Snapshot::empty(settings).apply(batches).0);
    assert_eq!(endpoints(&world, "east"), ["10.1.0.1:80", "192.0.2.2:15444"]);
    assert_eq!(endpoints(&world, "west"), ["10.2.0.1:80", "192.0.2.1:15443"]);
}
