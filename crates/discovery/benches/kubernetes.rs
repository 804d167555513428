//! Cost of a cluster of 20,000 pods and 2,000 services on a real API server: resident memory per pod above a server on the
//! empty cluster, and the time from a patched EndpointSlice to a client.
//! `cargo bench -p discovery --bench kubernetes`; `PILOTAGE_DISCOVERY=PATH` measures another binary.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use api::envoy::config::endpoint::v3::ClusterLoadAssignment;
use prost::Message;
use serde_json::{Value, json};
use testkit::kubernetes::ApiServer;
use testkit::process::Process;
use testkit::{client, ports, wait};
use tonic::transport::Endpoint;
use xds::client::{DeltaClient, Held};

const SERVICES: usize = 2_000;
const PODS_EACH: usize = 10;
const NODES: usize = 500;
const NAMESPACES: usize = 50;
const PATCHES: usize = 300;
const PATIENCE: Duration = Duration::from_secs(180);
/// Fluctuation of memory that is ignored.
const STEADY_KIB: u64 = 128;
/// Above the initial ports of slices; adding the number of a patch identifies its push.
const FIRST_PORT: usize = 10_000;

#[tokio::main]
async fn main() {
    let api_server = ApiServer::start().await;
    let mut early = Server::start(api_server.kubeconfig());
    early.ready().await;
    let empty = early.weight().await;
    println!("on an empty cluster: {empty} KiB");
    let begun = Instant::now();
    api_server.put(&surroundings()).await;
    api_server.put(&(0..SERVICES).flat_map(objects).collect::<Vec<_>>()).await;
    println!("{} pods and {SERVICES} services put in {:.1?}", SERVICES * PODS_EACH, begun.elapsed());
    early.knows_services().await;
    print_memory("received by watches", empty, early.weight().await);
    early.client().await;
    drop(early);
    let begun = Instant::now();
    let mut server = Server::start(api_server.kubeconfig());
    server.ready().await;
    println!("a new server is ready after {:.1?}", begun.elapsed());
    print_memory("received by lists", empty, server.weight().await);
    react(&api_server, &server).await;
    println!("with a client that holds all load assignments: {} KiB", server.weight().await);
}

fn print_memory(how: &str, empty: u64, full: u64) {
    let bytes = (full - empty) * 1024 / (SERVICES * PODS_EACH) as u64;
    println!("{how}: {full} KiB, {bytes} bytes of resident memory per pod above the empty cluster");
}

/// Patches slices one by one and prints the time from the API server's response to the push.
async fn react(api_server: &ApiServer, server: &Server) {
    let mut client = server.client().await;
    let mut lags = Vec::new();
    for patch in 1..=PATCHES {
        let (number, port) = (patch * 7 % SERVICES, FIRST_PORT + patch);
        let cluster = cluster(number);
        let path = format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices/app-{number}-x", namespace(number));
        let part = json!({"ports": [{"name": "http", "port": port, "protocol": "TCP"}]});
        // The client reads meanwhile: the push may arrive before the API server's response.
        let (patched, came) = tokio::join!(
            async {
                api_server.patch(&path, &part).await.expect("a patched slice");
                Instant::now()
            },
            arrival(&mut client, &cluster, port)
        );
        lags.push(came.saturating_duration_since(patched));
    }
    lags.sort();
    let at = |share: f64| lags[((lags.len() - 1) as f64 * share) as usize];
    println!(
        "{PATCHES} patches, from the API server's answer to the client: median {:.2?}, p99 {:.2?}, most {:.2?}",
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

/// Time at which the client gets endpoints with this port.
async fn arrival(client: &mut DeltaClient, cluster: &str, port: usize) -> Instant {
    loop {
        let answer = client.next().await.expect("an answer").expect("an open stream");
        let now = Instant::now();
        client.ack(&answer);
        let bodies = answer.resources.iter().filter(|r| r.name == cluster).filter_map(|r| r.resource.as_ref());
        let mut assignments = bodies.map(|any| ClusterLoadAssignment::decode(&*any.value).expect("a load assignment"));
        if assignments.any(|assignment| has_port(&assignment, port)) {
            return now;
        }
    }
}

fn has_port(assignment: &ClusterLoadAssignment, port: usize) -> bool {
    use api::envoy::config::core::v3::{address::Address, socket_address::PortSpecifier};
    use api::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
    let endpoint = assignment.endpoints.first().and_then(|l| l.lb_endpoints.first());
    let Some(HostIdentifier::Endpoint(endpoint)) = endpoint.and_then(|e| e.host_identifier.clone()) else {
        return false;
    };
    let Some(Address::SocketAddress(socket)) = endpoint.address.and_then(|a| a.address) else { return false };
    socket.port_specifier == Some(PortSpecifier::PortValue(port as u32))
}

/// pilot-discovery as a child process.
struct Server {
    process: Process,
    grpc: SocketAddr,
    http: SocketAddr,
    monitoring: SocketAddr,
}

impl Server {
    fn start(kubeconfig: &Path) -> Server {
        let binary = std::env::var_os("PILOTAGE_DISCOVERY").map(PathBuf::from);
        let binary = binary.unwrap_or_else(|| env!("CARGO_BIN_EXE_pilot-discovery").into());
        let [grpc, http, monitoring] = [(); 3].map(|()| SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free())));
        let args = [
            "discovery".to_owned(),
            "--registries=Kubernetes".to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--grpcAddr={grpc}"),
            format!("--httpAddr={http}"),
            format!("--monitoringAddr={monitoring}"),
            "--secureGRPCAddr=".to_owned(),
            "--httpsAddr=".to_owned(),
        ];
        Server { process: Process::start("pilot-discovery", &binary, &args, &[]), grpc, http, monitoring }
    }

    async fn ready(&mut self) {
        let Server { process, http, .. } = self;
        wait::until_within(PATIENCE, "a ready pilot-discovery", async || {
            process.check_alive();
            let reply = client::get(*http, "discovery", "/ready").await?;
            if reply.status.is_success() { Ok(()) } else { Err(reply.status.to_string()) }
        })
        .await;
    }

    /// Waits until all services are known.
    async fn knows_services(&self) {
        wait::until_within(PATIENCE, "all services", async || {
            let page = client::get(self.monitoring, "discovery", "/metrics").await?;
            let line = page.body.lines().find_map(|line| line.strip_prefix("pilot_services "));
            let known = line.and_then(|text| text.parse::<f64>().ok()).unwrap_or_default();
            if known >= SERVICES as f64 { Ok(()) } else { Err(format!("{known} services")) }
        })
        .await;
    }

    /// Resident memory in KiB, once it is stable: temporary memory is freed within seconds.
    async fn weight(&self) -> u64 {
        let (mut before, mut steady) = (0, 0);
        loop {
            let now = self.process.memory_kib().unwrap_or_default();
            steady = if now.abs_diff(before) < STEADY_KIB { steady + 1 } else { 0 };
            if steady == 3 {
                return now;
            }
            before = now;
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
    }

    /// A client with the load assignments of all services, each with all its endpoints.
    async fn client(&self) -> DeltaClient {
        let names: Vec<String> = (0..SERVICES).map(cluster).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let node = Node { id: "sidecar~10.9.9.9~client.ns-1~ns-1.svc.cluster.local".to_owned(), ..Node::default() };
        let channel = Endpoint::from_shared(format!("http://{}", self.grpc)).expect("an address").connect_lazy();
        let opened = DeltaClient::open(channel, node, Held::new(), &TypeUrl::ENDPOINT, &names).await;
        let (mut client, mut held) = (opened.expect("a stream"), 0);
        while held < SERVICES {
            let answer = client.next().await.expect("an answer").expect("an open stream");
            for any in answer.resources.iter().filter_map(|r| r.resource.as_ref()) {
                let assignment = ClusterLoadAssignment::decode(&*any.value).expect("a load assignment");
                let endpoints: usize = assignment.endpoints.iter().map(|locality| locality.lb_endpoints.len()).sum();
                assert_eq!(endpoints, PODS_EACH, "{}", assignment.cluster_name);
                held += 1;
            }
            client.ack(&answer);
        }
        client
    }
}

fn namespace(number: usize) -> String {
    format!("ns-{}", number % NAMESPACES)
}

fn cluster(number: usize) -> String {
    format!("outbound|80||app-{number}.{}.svc.cluster.local", namespace(number))
}

fn address(number: usize, pod: usize) -> String {
    let index = number * PODS_EACH + pod;
    format!("10.100.{}.{}", index / 250, index % 250 + 1)
}

/// Metadata that an API server sets.
fn metadata(namespace: Option<String>, name: &str) -> Value {
    let uid = format!("00000000-0000-4000-8000-{:012x}", xxhash_rust::xxh3::xxh3_64(name.as_bytes()) >> 16);
    let mut metadata = json!({"name": name, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1});
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    metadata
}

/// Namespaces and nodes.
fn surroundings() -> Vec<(String, Value)> {
    let namespaces = (0..NAMESPACES).map(|number| {
        let name = format!("ns-{number}");
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata(None, &name),
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
        (format!("namespaces/{name}"), object)
    });
    let nodes = (0..NODES).map(|number| {
        let name = format!("node-{number}");
        let mut metadata = metadata(None, &name);
        metadata["labels"] = json!({"kubernetes.io/hostname": name, "topology.kubernetes.io/region": "west",
            "topology.kubernetes.io/zone": format!("zone-{}", number % 3)});
        (format!("minions/{name}"), json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}))
    });
    namespaces.chain(nodes).collect()
}

/// A service with its pods and slice.
fn objects(number: usize) -> Vec<(String, Value)> {
    let (name, here) = (format!("app-{number}"), namespace(number));
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata(Some(here.clone()), &name),
        "spec": {"type": "ClusterIP", "clusterIP": format!("10.96.{}.{}", 1 + number / 250, number % 250 + 1),
            "clusterIPs": [format!("10.96.{}.{}", 1 + number / 250, number % 250 + 1)], "selector": {"app": name},
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}], "sessionAffinity": "None"},
        "status": {"loadBalancer": {}}});
    let mut slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": metadata(Some(here.clone()), &format!("{name}-x")),
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": (0..PODS_EACH).map(|pod| endpoint(number, pod)).collect::<Vec<_>>()});
    slice["metadata"]["labels"] = json!({"kubernetes.io/service-name": name});
    let mut all =
        vec![(format!("services/specs/{here}/{name}"), service), (format!("endpointslices/{here}/{name}-x"), slice)];
    all.extend((0..PODS_EACH).map(|pod| (format!("pods/{here}/{}", pod_name(number, pod)), self::pod(number, pod))));
    all
}

fn pod_name(number: usize, pod: usize) -> String {
    format!("app-{number}-7d9c5b8f6d-{pod:05}")
}

fn node(number: usize, pod: usize) -> String {
    format!("node-{}", (number + pod * 37) % NODES)
}

fn endpoint(number: usize, pod: usize) -> Value {
    json!({"addresses": [address(number, pod)], "nodeName": node(number, pod),
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "targetRef": {"kind": "Pod", "namespace": namespace(number), "name": pod_name(number, pod)}})
}

fn pod(number: usize, pod: usize) -> Value {
    let (ip, name) = (address(number, pod), pod_name(number, pod));
    let mut metadata = metadata(Some(namespace(number)), &name);
    metadata["generateName"] = json!(format!("app-{number}-7d9c5b8f6d-"));
    metadata["labels"] = json!({"app": format!("app-{number}"), "version": "v1", "pod-template-hash": "7d9c5b8f6d",
        "security.istio.io/tlsMode": "istio", "service.istio.io/canonical-name": format!("app-{number}")});
    metadata["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": "1", "controller": true,
        "name": format!("app-{number}-7d9c5b8f6d")}]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {"nodeName": node(number, pod), "serviceAccountName": format!("app-{number}"),
            "containers": [{"name": "app", "image": "registry.example/app:1", "env": [{"name": "A", "value": "b"}],
                "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]}]},
        "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "hostIP": "192.0.2.1",
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "Initialized", "status": "True"}]}})
}
