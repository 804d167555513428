//! A mesh that a Prometheus scrapes: the server on an API server and files, and two workloads, each a real agent with a
//! stock Envoy whose requests the agent counts.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::backend::{HttpBackend, TcpBackend};
use testkit::certificates::Authority;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::kubernetes::ApiServer;
use testkit::process::Process;
use testkit::prometheus::ScrapedProcess;
use testkit::tls::TlsClient;
use testkit::{client, ports, programs, servers, wait};

pub(crate) const SERVER: &str = env!("CARGO_BIN_EXE_pilot-discovery");
/// Addresses of the two sidecars.
const FRONT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 31);
const CART: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 32);

pub(crate) struct Mesh {
    pub(crate) server: DiscoveryProcess,
    /// The port of the webhooks.
    https: SocketAddr,
    pub(crate) front: Sidecar,
    pub(crate) cart: Sidecar,
    pub(crate) ports: MeshPorts,
    pub(crate) http: HttpBackend,
    _tcp: TcpBackend,
    api_server: ApiServer,
    _folder: TempDir,
}

/// Ports of the services, and of the inbound listeners of `cart`.
#[derive(Clone, Copy)]
pub(crate) struct MeshPorts {
    http: u16,
    tcp: u16,
    inbound_http: u16,
    inbound_tcp: u16,
}

impl MeshPorts {
    /// Where `front` calls the HTTP service of `cart`.
    pub(crate) fn entrance(self) -> SocketAddr {
        (FRONT, self.http).into()
    }

    /// Where `front` calls the TCP service of `cart`.
    pub(crate) fn tcp_entrance(self) -> SocketAddr {
        (FRONT, self.tcp).into()
    }
}

/// An agent with its Envoy.
pub(crate) struct Sidecar {
    pub(crate) process: Process,
    pub(crate) status: SocketAddr,
}

impl Mesh {
    pub(crate) async fn start() -> Mesh {
        let folder = tempfile::tempdir().unwrap();
        let api_server = ApiServer::start().await;
        for (collection, object) in objects() {
            api_server.create(&collection, &object).await.unwrap_or_else(|e| panic!("{object}: {e}"));
        }
        let (http, tcp) = (HttpBackend::start("cart").await, TcpBackend::start("cart").await);
        let [service, tcp_service, inbound_http, inbound_tcp] = [(); 4].map(|()| ports::free());
        let ports = MeshPorts { http: service, tcp: tcp_service, inbound_http, inbound_tcp };
        let files = vec![
            ("services.yaml".to_owned(), services(ports)),
            ("sidecars.yaml".to_owned(), sidecars(ports, &http, &tcp)),
        ];
        let https = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()));
        let options = DiscoveryOptions { files, ..options(&api_server, folder.path(), https) };
        let server = DiscoveryProcess::start(SERVER, options).await;
        let authority = Authority::new();
        let front = Sidecar::start(folder.path(), &server, &authority, "front", FRONT).await;
        let cart = Sidecar::start(folder.path(), &server, &authority, "cart", CART).await;
        let mesh = Mesh { server, https, front, cart, ports, http, _tcp: tcp, api_server, _folder: folder };
        wait::until("a response of cart", async || {
            let reply = client::get(ports.entrance(), "cart.shop.svc.cluster.local", "/").await?;
            if reply.status.is_success() { Ok(()) } else { Err(format!("{} {}", reply.status, reply.body)) }
        })
        .await;
        mesh
    }

    /// Sends an object with a mistake to the webhook, as an API server does.
    pub(crate) async fn reject_an_object(&self) {
        let roots = wait::until("roots of the server", async || {
            let roots = self.api_server.get("/api/v1/namespaces/shop/configmaps/istio-ca-root-cert").await;
            let text = roots.map_err(|error| error.to_string())?["data"]["root-cert.pem"].as_str().map(str::to_owned);
            text.ok_or_else(|| "no root".to_owned())
        })
        .await;
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "operation": "CREATE",
                "resource": {"group": "networking.istio.io", "version": "v1", "resource": "virtualservices"},
                "object": {"apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
                    "metadata": {"name": "bad", "namespace": "shop"}, "spec": {"hosts": 7}},
            },
        });
        let client = TlsClient::trusting(&roots, None, &["http/1.1"]);
        let reply = client.post(self.https, "istiod.istio-system.svc", "/validate", review.to_string()).await.unwrap();
        assert_eq!(reply.json()["response"]["allowed"], false, "{}", reply.body);
    }

    /// What a Prometheus in a cluster would scrape, with the labels that it would add.
    pub(crate) fn targets(&self) -> Vec<ScrapedProcess> {
        let server = ScrapedProcess {
            address: self.server.monitoring(),
            path: "/metrics",
            labels: vec![("app", "istiod"), ("pod", "istiod-1")],
        };
        let sidecar = |sidecar: &Sidecar, app: &'static str| ScrapedProcess {
            address: sidecar.status,
            path: "/stats/prometheus",
            labels: vec![("app", app)],
        };
        vec![server, sidecar(&self.front, "front"), sidecar(&self.cart, "cart")]
    }
}

impl Sidecar {
    async fn start(
        folder: &Path,
        server: &DiscoveryProcess,
        authority: &Authority,
        name: &str,
        address: Ipv4Addr,
    ) -> Sidecar {
        let folder = folder.join(name);
        let own = authority.workload(&format!("spiffe://cluster.local/ns/shop/sa/{name}"));
        for (file, text) in
            [("cert-chain.pem", &own.chain), ("key.pem", &own.key), ("root-cert.pem", &authority.root())]
        {
            put(&folder.join("etc/certs").join(file), text);
        }
        let [admin, status] = [(); 2].map(|()| ports::free());
        let line = format!(
            "cd {} && exec {} proxy sidecar --ip {address} --id {name}-1.shop --domain shop.svc.cluster.local \
             --discoveryAddress {} --controlPlaneAuthPolicy NONE --configPath {} --binaryPath {} --proxyAdminPort {admin} \
             --statusPort {status} --concurrency 1 --requestMetrics",
            folder.display(),
            programs::binary("agent", "pilot-agent").display(),
            server.grpc(),
            folder.join("proxy").display(),
            servers::binary("envoy").display(),
        );
        let labels = json!({"app": name, "version": "v1", "service.istio.io/canonical-name": name}).to_string();
        let workload = format!("{name}-v1");
        let env = [
            ("ISTIO_METAJSON_LABELS", &*labels),
            ("ISTIO_META_WORKLOAD_NAME", &workload),
            ("ISTIO_META_CLUSTER_ID", "Kubernetes"),
            ("ISTIO_META_INTERCEPTION_MODE", "NONE"),
            ("POD_NAMESPACE", "shop"),
            ("ENVOY_STATUS_PORT", "0"),
            ("ENVOY_PROMETHEUS_PORT", "0"),
        ];
        let env: Vec<(String, String)> = env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let mut process = Process::start(name, Path::new("/bin/sh"), &["-c".to_owned(), line], &env);
        let status = SocketAddr::from((Ipv4Addr::LOCALHOST, status));
        wait::until(&format!("a ready sidecar of {name}"), async || {
            process.check_alive();
            let reply = client::get(status, "localhost", "/healthz/ready").await?;
            if reply.status.is_success() { Ok(()) } else { Err(reply.body) }
        })
        .await;
        Sidecar { process, status }
    }

    /// All metrics: the agent's and Envoy's.
    pub(crate) async fn metrics(&self) -> String {
        wait::until("metrics", async || Ok(client::get(self.status, "localhost", "/stats/prometheus").await?.body))
            .await
    }
}

fn put(path: &PathBuf, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// The API server is for events of services, and for the webhooks.
fn options(api_server: &ApiServer, folder: &Path, https: SocketAddr) -> DiscoveryOptions {
    let secure = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()));
    DiscoveryOptions {
        args: vec![
            "--registries=Kubernetes".to_owned(),
            format!("--kubeconfig={}", api_server.kubeconfig().display()),
            format!("--secureGRPCAddr={secure}"),
            format!("--httpsAddr={https}"),
            format!("--caDir={}", folder.join("ca").display()),
        ],
        env: [("ENABLE_LEADER_ELECTION", "false"), ("ROOT_CA_DIR", "/nonexistent")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        ..DiscoveryOptions::default()
    }
}

/// Two services of the workload `cart`, one HTTP and one TCP.
fn services(ports: MeshPorts) -> String {
    let entry = |name: &str, number: u16, protocol: &str, target: u16| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec:\n  hosts: [{name}.shop.svc.cluster.local]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
             ports: [{{name: main, number: {number}, targetPort: {target}, protocol: {protocol}}}]\n  \
             workloadSelector: {{labels: {{app: cart}}}}\n---\n"
        )
    };
    let workload = format!(
        "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {{name: cart-v1, namespace: shop}}\n\
         spec: {{address: {CART}, serviceAccount: cart, labels: {{app: cart, version: v1, \
         service.istio.io/canonical-name: cart, security.istio.io/tlsMode: istio}}}}\n"
    );
    [
        entry("cart", ports.http, "HTTP", ports.inbound_http),
        entry("ledger", ports.tcp, "TCP", ports.inbound_tcp),
        workload,
    ]
    .concat()
}

/// Each sidecar listens on its own address.
fn sidecars(ports: MeshPorts, http: &HttpBackend, tcp: &TcpBackend) -> String {
    let head = |name: &str| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec:\n  workloadSelector: {{labels: {{app: {name}}}}}\n"
        )
    };
    let port =
        |number: u16, protocol: &str| format!("port: {{number: {number}, name: p{number}, protocol: {protocol}}}");
    let egress = |number: u16, protocol: &str| {
        format!("  - {}\n    bind: {FRONT}\n    captureMode: NONE\n    hosts: [\"./*\"]\n", port(number, protocol))
    };
    let ingress = |number: u16, protocol: &str, to: SocketAddr| {
        format!("  - {}\n    bind: {CART}\n    captureMode: NONE\n    defaultEndpoint: {to}\n", port(number, protocol))
    };
    [
        head("front"),
        "  egress:\n".to_owned(),
        egress(ports.http, "HTTP"),
        egress(ports.tcp, "TCP"),
        "---\n".to_owned(),
        head("cart"),
        "  ingress:\n".to_owned(),
        ingress(ports.inbound_http, "HTTP", http.address()),
        ingress(ports.inbound_tcp, "TCP", tcp.address()),
        "  egress: [{hosts: [\"./*\"]}]\n".to_owned(),
    ]
    .concat()
}

/// A Service with an endpoint whose pod does not exist.
fn objects() -> Vec<(String, Value)> {
    let namespace = |name: &str| ("/api/v1/namespaces".to_owned(), json!({"metadata": {"name": name}}));
    let spec = json!({"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}]});
    let slice = json!({
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}}, "addressType": "IPv4",
        "ports": [{"name": "http", "port": 80}],
        "endpoints": [{"addresses": ["10.1.0.1"], "targetRef": {"kind": "Pod", "name": "web-1", "namespace": "shop"}}],
    });
    vec![
        namespace("istio-system"),
        namespace("shop"),
        ("/api/v1/namespaces/shop/services".to_owned(), json!({"metadata": {"name": "web"}, "spec": spec})),
        ("/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices".to_owned(), slice),
    ]
}
