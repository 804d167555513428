//! Fixture: pilot-discovery, a TCP link that can go dead, the relay, an Envoy behind it, and traffic.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use agent::metrics::Metrics;
use agent::relay::{Pings, Relay, RelayOptions, Upstream};
use serde_json::json;
use tempfile::TempDir;
use testkit::backend::HttpBackend;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::envoy::{Bootstrap, Envoy, XdsTransport};
use testkit::{client, ports, programs, wait};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::tcp_link::TcpLink;

/// Short, so that a dead connection is detected quickly.
pub(crate) const PINGS: Pings = Pings { interval: Duration::from_millis(500), timeout: Duration::from_millis(1500) };

pub(crate) struct Fixture {
    pub(crate) discovery: DiscoveryProcess,
    /// Between the relay and pilot-discovery.
    pub(crate) link: TcpLink,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) envoy: Envoy,
    pub(crate) address: SocketAddr,
    pub(crate) port: u16,
    stop: CancellationToken,
    _folder: TempDir,
}

pub(crate) fn service(port: u16, backends: &[&HttpBackend]) -> String {
    let endpoints: String =
        backends.iter().map(|b| format!("  - {{address: 127.0.0.1, ports: {{http: {}}}}}\n", b.port())).collect();
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: cart, namespace: shop}}\n\
         spec:\n  hosts: [{HOST}]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
         ports: [{{name: http, number: {port}, protocol: HTTP}}]\n  endpoints:\n{endpoints}"
    )
}

pub(crate) const HOST: &str = "cart.shop.svc.cluster.local";

impl Fixture {
    /// Starts everything and waits until a request through Envoy succeeds.
    pub(crate) async fn start(transport: XdsTransport, backend: &HttpBackend) -> Fixture {
        let port = ports::free();
        let setup = DiscoveryOptions {
            files: vec![("mesh.yaml".to_owned(), service(port, &[backend]))],
            mesh: "enableAutoMtls: false\n".to_owned(),
            ..DiscoveryOptions::default()
        };
        let binary = programs::binary("discovery", "pilot-discovery");
        let discovery = DiscoveryProcess::start(&binary.to_string_lossy(), setup).await;
        let link = TcpLink::to(discovery.grpc()).await;
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("XDS");
        let (metrics, stop) = (Arc::new(Metrics::default()), CancellationToken::new());
        let upstream = Upstream { pings: PINGS, ..Upstream::plain(&link.address().to_string()) };
        let options =
            RelayOptions { max_connect_wait: Duration::from_secs(2), ..RelayOptions::new(socket.clone(), upstream) };
        let relay = Relay::bind(options, None, Arc::clone(&metrics)).expect("a relay");
        tokio::spawn(relay.serve(stop.clone()));
        let bootstrap = Bootstrap::sidecar(0, transport, "client", "outside", json!({"app": "client"}));
        let mut envoy = Envoy::start_with(bootstrap.over_socket(&socket)).await;
        envoy.ready().await;
        let address = (Ipv4Addr::LOCALHOST, port).into();
        let fixture = Fixture { discovery, link, metrics, envoy, address, port, stop, _folder: folder };
        fixture.answered_by("v1").await;
        fixture
    }

    pub(crate) async fn answered_by(&self, backend: &str) {
        wait::until(&format!("an answer of {backend}"), async || {
            let reply = client::get(self.address, HOST, "/").await?;
            if reply.backend() == backend { Ok(()) } else { Err(format!("{} {}", reply.status, reply.body)) }
        })
        .await;
    }

    /// Checks that a configuration change reaches Envoy.
    pub(crate) async fn change_arrives(&self, old: &HttpBackend, name: &str) {
        let new = HttpBackend::start(name).await;
        self.discovery.write("mesh.yaml", &service(self.port, &[&new]));
        self.answered_by(name).await;
        self.discovery.write("mesh.yaml", &service(self.port, &[old]));
        self.answered_by("v1").await;
    }

    pub(crate) async fn reconnected(&self, more_than: u64) -> u64 {
        wait::until("a stream again", async || match self.metrics.pilot_reconnections.get() {
            count if count > more_than && self.metrics.pilot_connected.get() == 1 => Ok(count),
            count => Err(format!("{count} reconnections, {} connected", self.metrics.pilot_connected.get())),
        })
        .await
    }

    pub(crate) async fn assert_settled(&self) {
        self.envoy.admin().assert_settled().await;
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Sequential requests until stopped.
pub(crate) struct Traffic {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Traffic {
    pub(crate) fn start(address: SocketAddr) -> Traffic {
        let (stop, sent, failed) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default(), Arc::default());
        let task = tokio::spawn({
            let (stop, sent, failed) = (Arc::clone(&stop), Arc::clone(&sent), Arc::<AtomicU64>::clone(&failed));
            async move {
                while !stop.load(Ordering::Relaxed) {
                    sent.fetch_add(1, Ordering::Relaxed);
                    let good = client::get(address, HOST, "/").await.is_ok_and(|reply| reply.status.is_success());
                    failed.fetch_add(u64::from(!good), Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        });
        Traffic { stop, sent, failed, task }
    }

    /// The number of sent and failed requests.
    pub(crate) async fn end(self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("the traffic task ends");
        (self.sent.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }
}
