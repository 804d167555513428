//! Test mesh: pilot-discovery, the sidecar of one client, and backends.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use serde_json::json;
use testkit::backend::HttpBackend;
use testkit::client::{self, Reply};
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::envoy::{Bootstrap, Envoy, XdsTransport};
use testkit::sds::{SdsSecrets, SdsServer};
use testkit::{ports, wait};

/// Without an SDS server sidecars use plain text.
pub(crate) const MESH: &str = "enableAutoMtls: false\n";

/// A running mesh. The client has its own namespace, so it is no endpoint of the services it calls.
pub(crate) struct Mesh {
    pub(crate) discovery: DiscoveryProcess,
    pub(crate) envoy: Envoy,
    /// Address of the client's Envoy for calls to port `port` of any service.
    pub(crate) address: SocketAddr,
    /// The SDS server of the Envoy, if it has certificates.
    _agent: Option<SdsServer>,
}

/// A free port for the services of a test.
pub(crate) fn service_port() -> u16 {
    ports::free()
}

/// A service `NAME.shop` with backends as endpoints; the version label is the last part of the backend's name.
pub(crate) fn http_service(name: &str, port: u16, backends: &[&HttpBackend], versions: &[&str]) -> String {
    let endpoints: Vec<String> = backends
        .iter()
        .zip(versions)
        .map(|(b, version)| {
            format!("  - {{address: 127.0.0.1, ports: {{http: {}}}, labels: {{version: {version}}}}}", b.port())
        })
        .collect();
    service(name, port, "HTTP", "http", &endpoints.join("\n"))
}

/// A ServiceEntry document; `endpoints` are its lines.
pub(crate) fn service(name: &str, port: u16, protocol: &str, port_name: &str, endpoints: &str) -> String {
    let endpoints =
        if endpoints.is_empty() { "  endpoints: []".to_owned() } else { format!("  endpoints:\n{endpoints}") };
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec:\n  hosts: [{name}.shop.svc.cluster.local]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
         ports: [{{name: {port_name}, number: {port}, protocol: {protocol}}}]\n{endpoints}\n"
    )
}

/// A VirtualService document for `NAME.shop`; `routes` are the lines of its spec after the hosts.
pub(crate) fn virtual_service(name: &str, routes: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec:\n  hosts: [{name}.shop.svc.cluster.local]\n{routes}\n"
    )
}

/// A DestinationRule document for `NAME.shop`; `rest` are the lines of its spec after the host.
pub(crate) fn destination_rule(name: &str, rest: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec:\n  host: {name}.shop.svc.cluster.local\n{rest}\n"
    )
}

/// Subsets v1 and v2 of a service by label.
pub(crate) const SUBSETS: &str =
    "  subsets:\n  - {name: v1, labels: {version: v1}}\n  - {name: v2, labels: {version: v2}}";

impl Mesh {
    /// Starts everything on these documents and waits until the client's Envoy is ready.
    pub(crate) async fn start(transport: XdsTransport, port: u16, documents: &[String]) -> Mesh {
        let discovery = discovery(documents, MESH, &[]).await;
        let bootstrap = caller(&discovery, transport);
        Self::of(discovery, bootstrap, port, None).await
    }

    /// The same with a complete MeshConfig.
    pub(crate) async fn fed(transport: XdsTransport, port: u16, mesh: &str) -> Mesh {
        let discovery = discovery(&[], mesh, &[]).await;
        let bootstrap = caller(&discovery, transport);
        Self::of(discovery, bootstrap, port, None).await
    }

    /// The Envoy is a gateway that opens this port, with the label `istio: ingressgateway`.
    pub(crate) async fn edge(transport: XdsTransport, port: u16, documents: &[String]) -> Mesh {
        Self::edge_with(transport, port, documents, None).await
    }

    /// The same with certificates.
    pub(crate) async fn edge_with(
        transport: XdsTransport,
        port: u16,
        documents: &[String],
        secrets: Option<SdsSecrets>,
    ) -> Mesh {
        let discovery = discovery(documents, MESH, &[]).await;
        let labels = json!({"istio": "ingressgateway"});
        let bootstrap = Bootstrap::router(discovery.grpc().port(), transport, "edge", "istio-system", labels);
        Self::of(discovery, bootstrap, port, secrets).await
    }

    /// The Envoy is the sidecar of `cart.shop` and accepts calls on this port; `settings` are lines of MeshConfig.
    pub(crate) async fn server(transport: XdsTransport, port: u16, documents: &[String], settings: &str) -> Mesh {
        Self::server_with(transport, port, documents, settings, &[]).await
    }

    /// The same with environment variables of the control plane.
    pub(crate) async fn server_with(
        transport: XdsTransport,
        port: u16,
        documents: &[String],
        settings: &str,
        env: &[(&str, &str)],
    ) -> Mesh {
        let discovery = discovery(documents, &format!("{MESH}{settings}"), env).await;
        let bootstrap = callee(&discovery, transport);
        Self::of(discovery, bootstrap, port, None).await
    }

    /// The same with certificates and a complete MeshConfig.
    pub(crate) async fn secured(
        transport: XdsTransport,
        port: u16,
        documents: &[String],
        mesh: &str,
        secrets: SdsSecrets,
    ) -> Mesh {
        let discovery = discovery(documents, mesh, &[]).await;
        let bootstrap = callee(&discovery, transport);
        Self::of(discovery, bootstrap, port, Some(secrets)).await
    }

    async fn of(discovery: DiscoveryProcess, bootstrap: Bootstrap, port: u16, secrets: Option<SdsSecrets>) -> Mesh {
        let (envoy, agent) = envoy(bootstrap, secrets).await;
        Mesh { discovery, envoy, address: (Ipv4Addr::LOCALHOST, port).into(), _agent: agent }
    }

    /// GET of a service by its short name.
    pub(crate) async fn get(&self, service: &str, path: &str) -> Reply {
        self.get_with(service, path, &[]).await
    }

    pub(crate) async fn get_with(&self, service: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
        let host = host(service);
        client::get_with(self.address, &host, path, headers).await.unwrap_or_else(|e| panic!("{service}{path}: {e}"))
    }

    /// Waits until this backend responds for the service.
    pub(crate) async fn answered_by(&self, service: &str, backend: &str) {
        wait::until(&format!("an answer of {backend}"), async || {
            let reply = client::get(self.address, &host(service), "/").await?;
            if reply.backend() == backend { Ok(()) } else { Err(format!("{} {}", reply.status, reply.body)) }
        })
        .await;
    }

    /// Sends requests and counts the responses of each backend.
    pub(crate) async fn counted(&self, service: &str, requests: usize) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for _ in 0..requests {
            let reply = self.get(service, "/").await;
            *counts.entry(reply.backend().to_owned()).or_default() += 1;
        }
        counts
    }

    /// End of every test: Envoy rejected nothing and waits for nothing.
    pub(crate) async fn assert_settled(&self) {
        self.envoy.admin().assert_settled().await;
    }
}

/// The client's Envoy.
pub(crate) fn caller(discovery: &DiscoveryProcess, transport: XdsTransport) -> Bootstrap {
    Bootstrap::sidecar(discovery.grpc().port(), transport, "client", "outside", json!({"app": "client"}))
}

/// The sidecar of `cart.shop`.
fn callee(discovery: &DiscoveryProcess, transport: XdsTransport) -> Bootstrap {
    Bootstrap::sidecar(discovery.grpc().port(), transport, "cart", "shop", json!({"app": "cart"}))
}

/// A ready Envoy, with an SDS server if there are secrets.
pub(crate) async fn envoy(mut bootstrap: Bootstrap, secrets: Option<SdsSecrets>) -> (Envoy, Option<SdsServer>) {
    let agent = match secrets {
        Some(secrets) => Some(SdsServer::start(secrets).await),
        None => None,
    };
    bootstrap.sds_port = agent.as_ref().map(SdsServer::port);
    let mut envoy = Envoy::start(&bootstrap).await;
    envoy.ready().await;
    (envoy, agent)
}

async fn discovery(documents: &[String], mesh: &str, env: &[(&str, &str)]) -> DiscoveryProcess {
    let files = vec![("mesh.yaml".to_owned(), documents.join("---\n"))];
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let setup = DiscoveryOptions { files, mesh: mesh.to_owned(), env, ..DiscoveryOptions::default() };
    DiscoveryProcess::start(env!("CARGO_BIN_EXE_pilot-discovery"), setup).await
}

pub(crate) fn host(service: &str) -> String {
    format!("{service}.shop.svc.cluster.local")
}
