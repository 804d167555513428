//! Gauges of conflicts and gaps: none in a good mesh, and each has the number of its mistakes.

use std::collections::BTreeMap;

use api::envoy::config::core::v3::Node;
use api::{Struct, TypeUrl, Value, value};
use serde_json::json;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::{client, wait};
use tonic::transport::Endpoint;
use xds::client::SotwClient;

use crate::cluster::{cluster, create, is_left_out};

/// Each mistake in its own namespace.
const MISTAKES: &str = "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: one, namespace: inbound}
spec: {hosts: [one.inbound], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, targetPort: 8080, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.1}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: two, namespace: inbound}
spec: {hosts: [two.inbound], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 81, targetPort: 8080, name: tcp, protocol: TCP}], endpoints: [{address: 10.0.0.1}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: one, namespace: outbound}
spec: {hosts: [one.outbound], addresses: [10.9.0.7], resolution: STATIC, ports: [{number: 5000, name: tcp, protocol: TCP}], endpoints: [{address: 10.0.1.1}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: two, namespace: outbound}
spec: {hosts: [two.outbound], addresses: [10.9.0.7], resolution: STATIC, ports: [{number: 5000, name: tcp, protocol: TCP}], endpoints: [{address: 10.0.1.2}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: empty, namespace: gaps}
spec: {hosts: [empty.gaps], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: more, protocol: HTTP}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: one, namespace: outbound}
spec: {host: one.outbound, subsets: [{name: v1}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: two, namespace: outbound}
spec: {host: one.outbound, subsets: [{name: v1}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: one, namespace: outbound}
spec: {hosts: [same.example], http: [{route: [{destination: {host: one.outbound}}]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: two, namespace: outbound}
spec: {hosts: [same.example], http: [{route: [{destination: {host: one.outbound}}]}]}
";

/// Gauges, and what they show with the mistakes.
const EXPECTED: [(&str, f64); 6] = [
    ("istiod_managed_clusters{cluster_type=\"local\"}", 1.0),
    ("pilot_conflict_inbound_listener", 1.0),
    ("pilot_destrule_subsets", 1.0),
    ("pilot_eds_no_instances", 2.0),
    ("pilot_no_ip", 1.0),
    ("pilot_vservice_dup_domain", 1.0),
];

/// A sidecar that has everything but routes and endpoints. It sends its labels, as the pods of this cluster are not known.
async fn sidecar(server: &DiscoveryProcess, address: &str, namespace: &str) -> SotwClient {
    let channel = Endpoint::from_shared(format!("http://{}", server.grpc())).unwrap().connect().await.unwrap();
    // A name with dots would hide the namespace.
    let name = address.replace('.', "-");
    let id = format!("sidecar~{address}~{name}.{namespace}~{namespace}.svc.cluster.local");
    let text = |text: &str| Value { kind: Some(value::Kind::StringValue(text.to_owned())) };
    let of = |name: &str, value: Value| Struct { fields: [(name.to_owned(), value)].into() };
    let labels = Value { kind: Some(value::Kind::StructValue(of("app", text("web")))) };
    let node = Node { id, metadata: Some(of("LABELS", labels)), ..Node::default() };
    let mut stream = SotwClient::open(channel, node, &TypeUrl::CLUSTER, &[]).await.unwrap();
    let clusters = stream.next().await.unwrap().unwrap();
    stream.ack(&clusters);
    stream.subscribe(&TypeUrl::LISTENER, &[]);
    let listeners = stream.next().await.unwrap().unwrap();
    stream.ack(&listeners);
    stream
}

async fn values(server: &DiscoveryProcess) -> Result<BTreeMap<String, f64>, String> {
    let page = client::get(server.monitoring(), "discovery", "/metrics").await?.body;
    let series = page.lines().filter_map(|line| line.rsplit_once(' '));
    Ok(series.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect())
}

async fn until_shown(server: &DiscoveryProcess, what: &str, expected: &[(&str, f64)]) {
    wait::until(what, async || {
        let all = values(server).await?;
        let differing = expected.iter().filter(|(name, value)| all.get(*name) != Some(value));
        let found: Vec<String> =
            differing.map(|(name, value)| format!("{name}: {value}, {:?}", all.get(*name))).collect();
        if found.is_empty() { Ok(()) } else { Err(format!("expected and found: {found:#?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gauges_have_the_number_of_conflicts_and_gaps() {
    if is_left_out(&[]) {
        return;
    }
    let api_server = cluster().await;
    let meta = |name: &str| json!({"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}});
    let objects = [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": meta("web"),
            "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}]}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta("web-1"), "addressType": "IPv4",
            "ports": [{"name": "http", "port": 80}],
            "endpoints": [{"addresses": ["10.0.0.9"], "conditions": {"ready": false}}, {"addresses": ["10.0.0.8"]}]}),
    ];
    create(&api_server, &objects).await;
    let options = DiscoveryOptions {
        args: vec!["--registries=Kubernetes".to_owned(), format!("--kubeconfig={}", api_server.kubeconfig().display())],
        ..DiscoveryOptions::default()
    };
    let server = DiscoveryProcess::start(env!("CARGO_BIN_EXE_pilot-discovery"), options).await;
    let _ready = sidecar(&server, "10.0.0.8", "shop").await;
    let none: Vec<(&str, f64)> = EXPECTED[1..].iter().map(|(name, _)| (*name, 0.0)).collect();
    until_shown(&server, "no conflicts", &none).await;
    server.write("mistakes.yaml", MISTAKES);
    let _clients = [
        sidecar(&server, "10.0.0.9", "shop").await,
        sidecar(&server, "10.0.0.1", "inbound").await,
        sidecar(&server, "10.0.0.99", "nowhere").await,
    ];
    until_shown(&server, "each conflict and gap", &EXPECTED).await;
    let page = client::get(server.http(), "discovery", "/debug/push_status").await.unwrap().json();
    for (gauge, _) in &EXPECTED[1..] {
        assert!(page[*gauge].is_object(), "{gauge} is not on the page: {page:#}");
    }
    server.remove("mistakes.yaml");
    // The two clients without a service remain; what is not served any longer is dropped after seconds.
    until_shown(&server, "no conflicts again", &[("pilot_destrule_subsets", 0.0), ("pilot_eds_no_instances", 0.0)])
        .await;
}
