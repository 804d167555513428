//! The mesh of a simulated fleet: services of two ports with ten endpoints each in 20 namespaces, in a real API server, a
//! real Consul or a folder of files, and the changes that are measured.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::node::{GATEWAY, NAMESPACES, SCOPED};
use super::staleness::address_of;
use crate::consul::Consul;
use crate::istiod::Istiod;
use crate::kubernetes::{ApiServer, CrdSpec};
use crate::process::Process;
use crate::{client, ports, wait};

const ENDPOINTS: usize = 10;
/// Start-up of a server with thousands of services on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);
/// Registrations sent to Consul at the same time.
const LANES: usize = 8;
/// Istio's kinds in the mesh.
const KINDS: [CrdSpec<'static>; 3] = [
    networking("VirtualService", "virtualservices"),
    networking("Gateway", "gateways"),
    networking("Sidecar", "sidecars"),
];
/// The Gateway that simulated gateways serve.
const EDGE: &str = "ns0/edge";
/// istiod lets few proxies connect in a second by default, which would be measured instead of its work.
const ISTIOD_ENV: (&str, &str) = ("PILOT_MAX_REQUESTS_PER_SECOND", "1000");

const fn networking(kind: &'static str, plural: &'static str) -> CrdSpec<'static> {
    ("networking.istio.io", &["v1", "v1beta1", "v1alpha3"], kind, plural, true)
}

/// A mesh of `services` services.
pub struct SimulatedMesh {
    services: usize,
    store: Store,
}

/// Where the mesh is kept.
enum Store {
    Files(TempDir),
    Kubernetes(Box<ApiServer>),
    Consul(Box<Consul>),
}

/// A control plane that serves a mesh.
pub struct ControlPlane {
    pub process: Process,
    pub grpc: SocketAddr,
    /// From its start until it was ready.
    pub start: Duration,
}

impl SimulatedMesh {
    /// A mesh of ServiceEntries, one per file.
    pub fn in_files(services: usize) -> SimulatedMesh {
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        fs::create_dir(folder.path().join("config")).unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        let mesh = SimulatedMesh { services, store: Store::Files(folder) };
        for service in 0..services {
            mesh.write(&format!("s{service}.yaml"), &service_entry(service, None));
        }
        mesh.write("edge.yaml", &gateway().to_string());
        mesh
    }

    /// A mesh of Services and EndpointSlices in a new API server.
    pub async fn in_kubernetes(services: usize) -> SimulatedMesh {
        let api_server = Box::new(ApiServer::start().await);
        api_server.define(&KINDS).await;
        let namespaces: Vec<(String, Value)> = (0..NAMESPACES).map(namespace_object).collect();
        api_server.put(&namespaces).await;
        let objects = (0..services).flat_map(|service| [service_object(service), slice_object(service, None)]);
        api_server.put(&objects.collect::<Vec<_>>()).await;
        let mesh = SimulatedMesh { services, store: Store::Kubernetes(api_server) };
        mesh.apply("gateways", "edge", 0, gateway()).await;
        mesh
    }

    /// A mesh in the catalog of a new Consul: services of one port without namespaces.
    pub async fn in_consul(services: usize) -> SimulatedMesh {
        let consul = Consul::start().await;
        let consul = std::sync::Arc::new(consul);
        let mut lanes = JoinSet::new();
        for lane in 0..LANES {
            let consul = consul.clone();
            lanes.spawn(async move {
                for service in (lane..services).step_by(LANES) {
                    for (endpoint, address) in addresses(service, None).enumerate() {
                        consul.register("machine", &instance(service, endpoint, &address), "passing").await;
                    }
                }
            });
        }
        while let Some(done) = lanes.join_next().await {
            done.unwrap_or_else(|e| panic!("could not fill Consul: {e}"));
        }
        let consul = std::sync::Arc::into_inner(consul).unwrap_or_else(|| panic!("Consul is still being filled"));
        SimulatedMesh { services, store: Store::Consul(Box::new(consul)) }
    }

    /// Adds a Sidecar resource to each namespace, which limits `scoped` sidecars of a fleet to services of their own
    /// namespace and of that of a service.
    pub async fn limit_scopes(&self, service: usize) {
        for number in 0..NAMESPACES {
            self.apply("sidecars", "scoped", number, sidecar(number, &namespace(service))).await;
        }
    }

    pub fn services(&self) -> usize {
        self.services
    }

    /// Starts a `pilot-discovery` on the mesh and waits until it is ready.
    pub async fn serve(&self, binary: &Path) -> ControlPlane {
        let mut args = vec!["discovery".to_owned()];
        match &self.store {
            Store::Files(folder) => {
                let config = folder.path().join("config");
                args.extend(["--registries=".to_owned(), format!("--configDir={}", config.display())]);
            }
            Store::Kubernetes(api_server) => {
                let kubeconfig = api_server.kubeconfig().display();
                args.extend(["--registries=Kubernetes".to_owned(), format!("--kubeconfig={kubeconfig}")]);
            }
            Store::Consul(consul) => {
                args.extend(["--registries=Consul".to_owned(), format!("--consulserverURL={}", consul.url())]);
            }
        }
        let [grpc, http, monitoring] = [(); 3].map(|()| SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free())));
        args.extend(crate::discovery::addresses(grpc, http, monitoring));
        let begun = Instant::now();
        let mut process = Process::start("pilot-discovery", binary, &args, &[]);
        wait::until_within(PATIENCE, "a ready pilot-discovery", async || {
            process.check_alive();
            let reply = client::get(http, "discovery", "/ready").await?;
            if reply.status.is_success() { Ok(()) } else { Err(reply.status.to_string()) }
        })
        .await;
        ControlPlane { process, grpc, start: begun.elapsed() }
    }

    /// Starts istiod on the mesh, which must be in an API server.
    pub async fn serve_with_istiod(&self) -> ControlPlane {
        let Store::Kubernetes(api_server) = &self.store else { panic!("istiod needs an API server") };
        let put = |name: &str, text: &str| {
            let path = api_server.folder().join(name);
            fs::write(&path, text).unwrap_or_else(|e| panic!("could not write {name}: {e}"));
            path
        };
        let files = (put("mesh.yaml", "{}\n"), put("networks.yaml", "networks: {}\n"));
        let env = [(ISTIOD_ENV.0.to_owned(), ISTIOD_ENV.1.to_owned())];
        let begun = Instant::now();
        let istiod = Istiod::start(api_server, (&files.0, &files.1), &env).await;
        let (grpc, start) = (istiod.grpc(), begun.elapsed());
        ControlPlane { process: istiod.into_process(), grpc, start }
    }

    /// Replaces the first endpoint of a service by one whose address carries the number of the change.
    pub async fn change_endpoint(&self, service: usize, change: u32) {
        match &self.store {
            Store::Files(_) => self.write(&format!("s{service}.yaml"), &service_entry(service, Some(change))),
            Store::Kubernetes(api_server) => api_server.put(&[slice_object(service, Some(change))]).await,
            Store::Consul(consul) => {
                let address = address_of(change).to_string();
                consul.register("machine", &instance(service, 0, &address), "passing").await;
            }
        }
    }

    /// Creates or changes the VirtualService of a service; the timeout is the number of the change.
    pub async fn change_route(&self, service: usize, change: usize) {
        let mut object = virtual_service(service, change);
        object["spec"]["gateways"] = json!(["mesh", EDGE]);
        self.apply("virtualservices", &format!("s{service}"), service % NAMESPACES, object).await;
    }

    /// Creates or replaces an object of Istio's in a namespace, given by its number.
    async fn apply(&self, plural: &str, name: &str, number: usize, object: Value) {
        match &self.store {
            Store::Files(_) => self.write(&format!("{plural}-{name}-{number}.yaml"), &object.to_string()),
            Store::Kubernetes(api_server) => {
                let key = format!("networking.istio.io/{plural}/{}/{name}", namespace(number));
                api_server.put(&[(key, object)]).await;
            }
            Store::Consul(_) => panic!("Consul has no {plural}"),
        }
    }

    /// Writes a file into the folder atomically.
    fn write(&self, name: &str, text: &str) {
        let Store::Files(folder) = &self.store else { return };
        let part = folder.path().join(format!("part-{name}"));
        let moved = fs::write(&part, text).and_then(|()| fs::rename(&part, folder.path().join("config").join(name)));
        moved.unwrap_or_else(|e| panic!("could not write {name}: {e}"));
    }
}

/// The number of the service that a cluster leads to, by the name of its first port's cluster.
pub(crate) fn service_of(cluster: &str) -> Option<usize> {
    cluster.strip_prefix("outbound|80||s")?.split_once('.')?.0.parse().ok()
}

fn namespace(service: usize) -> String {
    format!("ns{}", service % NAMESPACES)
}

fn host(service: usize) -> String {
    format!("s{service}.{}.svc.cluster.local", namespace(service))
}

fn virtual_address(service: usize) -> String {
    format!("10.96.{}.{}", 1 + service / 250, service % 250 + 1)
}

/// Addresses of a service's endpoints; a change replaces the first.
fn addresses(service: usize, change: Option<u32>) -> impl Iterator<Item = String> {
    let original = move |endpoint| format!("10.{}.{}.{}", service / 200 + 100, service % 200, endpoint + 1);
    (0..ENDPOINTS).map(move |endpoint| match change.filter(|_| endpoint == 0) {
        Some(change) => address_of(change).to_string(),
        None => original(endpoint),
    })
}

pub(crate) fn service_entry(service: usize, change: Option<u32>) -> String {
    let mut text = format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: s{service}, namespace: {}}}\nspec:\n  \
         hosts: [{}]\n  addresses: [{}]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  ports:\n  \
         - {{name: http, number: 80, targetPort: 8080, protocol: HTTP}}\n  \
         - {{name: grpc, number: 90, targetPort: 9090, protocol: GRPC}}\n  endpoints:\n",
        namespace(service),
        host(service),
        virtual_address(service),
    );
    for address in addresses(service, change) {
        let _ = writeln!(text, "  - {{address: {address}, labels: {{app: s{service}}}}}");
    }
    text
}

/// Metadata that an API server sets.
pub(crate) fn metadata(namespace: Option<&str>, name: &str) -> Value {
    let uid = format!("00000000-0000-4000-8000-{:012x}", xxhash_rust::xxh3::xxh3_64(name.as_bytes()) >> 16);
    let mut metadata = json!({"name": name, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1});
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    metadata
}

pub(crate) fn namespace_object(number: usize) -> (String, Value) {
    let name = format!("ns{number}");
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata(None, &name),
        "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
    (format!("namespaces/{name}"), object)
}

fn service_object(service: usize) -> (String, Value) {
    let (name, here, address) = (format!("s{service}"), namespace(service), virtual_address(service));
    let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata(Some(&here), &name),
        "spec": {"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "selector": {"app": name},
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None", "ports": [
                {"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080},
                {"name": "grpc", "port": 90, "protocol": "TCP", "targetPort": 9090}]},
        "status": {"loadBalancer": {}}});
    (format!("services/specs/{here}/{name}"), object)
}

fn slice_object(service: usize, change: Option<u32>) -> (String, Value) {
    let (name, here) = (format!("s{service}-1"), namespace(service));
    let endpoint = |address| json!({"addresses": [address], "conditions": {"ready": true}});
    let mut object = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": metadata(Some(&here), &name),
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}, {"name": "grpc", "port": 9090, "protocol": "TCP"}],
        "endpoints": addresses(service, change).map(endpoint).collect::<Vec<_>>()});
    object["metadata"]["labels"] = json!({"kubernetes.io/service-name": format!("s{service}")});
    (format!("endpointslices/{here}/{name}"), object)
}

/// One instance of a service in Consul.
fn instance(service: usize, endpoint: usize, address: &str) -> Value {
    json!({"ID": format!("s{service}-{endpoint}"), "Service": format!("s{service}"), "Address": address, "Port": 80})
}

fn gateway() -> Value {
    json!({"apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": metadata(Some("ns0"), "edge"),
        "spec": {"selector": {"app": GATEWAY}, "servers": [
            {"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]}})
}

/// A Sidecar of a namespace, which lets the services of another one in.
fn sidecar(number: usize, other: &str) -> Value {
    let (here, (key, value)) = (namespace(number), SCOPED);
    json!({"apiVersion": "networking.istio.io/v1", "kind": "Sidecar", "metadata": metadata(Some(&here), "scoped"),
        "spec": {"workloadSelector": {"labels": {key: value}},
            "egress": [{"hosts": ["./*", format!("{other}/*")]}]}})
}

pub(crate) fn virtual_service(service: usize, change: usize) -> Value {
    let host = host(service);
    json!({"apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
        "metadata": metadata(Some(&namespace(service)), &format!("s{service}")),
        "spec": {"hosts": [host], "http": [{"timeout": format!("{}s", change + 1),
            "route": [{"destination": {"host": host}}]}]}})
}
