//! Requests through real Envoys of both transports, whose backends change all the time but never disappear.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::backend::HttpBackend;
use crate::discovery::DiscoveryProcess;
use crate::envoy::{Bootstrap, Envoy, XdsTransport};
use crate::{client, ports, servers, wait};

const PAUSE: Duration = Duration::from_millis(20);
/// A request that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(15);

/// Envoys with their clients; empty on a machine without Envoy.
pub(super) struct Traffic {
    lanes: Vec<Lane>,
    counts: Arc<RequestCounts>,
}

#[derive(Default)]
struct RequestCounts {
    requests: AtomicU64,
    failed: AtomicU64,
    first_failure: Mutex<Option<String>>,
}

/// One Envoy in a namespace with its own service.
struct Lane {
    number: usize,
    port: u16,
    backends: [HttpBackend; 2],
    client: JoinHandle<()>,
    _envoy: Envoy,
}

impl Traffic {
    pub(super) async fn start(server: &DiscoveryProcess) -> Traffic {
        let counts = Arc::<RequestCounts>::default();
        let mut lanes = Vec::new();
        let transports = [XdsTransport::Delta, XdsTransport::Sotw];
        for (number, transport) in transports.into_iter().enumerate().filter(|_| !servers::without("envoy")) {
            lanes.push(Lane::start(server, number, transport, &counts).await);
        }
        Traffic { lanes, counts }
    }

    /// Changes the backends of one service: one of them or both.
    pub(super) fn change(&mut self, server: &DiscoveryProcess, random: &mut fastrand::Rng) {
        let Some(lane) = random.choice(&self.lanes) else { return };
        if random.u8(..10) == 0 {
            let kept = random.usize(..3);
            let ports: Vec<u16> = lane.backends.iter().map(HttpBackend::port).collect();
            lane.write(server, if kept < 2 { &ports[kept..=kept] } else { &ports });
        }
    }

    pub(super) fn requests(&self) -> u64 {
        self.counts.requests.load(Ordering::Relaxed)
    }

    pub(super) fn failed(&self) -> u64 {
        self.counts.failed.load(Ordering::Relaxed)
    }

    pub(super) fn first_failure(&self) -> Option<String> {
        self.counts.first_failure.lock().clone()
    }
}

impl Lane {
    async fn start(
        server: &DiscoveryProcess,
        number: usize,
        transport: XdsTransport,
        counts: &Arc<RequestCounts>,
    ) -> Lane {
        let (one, other) = (HttpBackend::start("one").await, HttpBackend::start("other").await);
        let port = ports::free();
        let ports = [one.port(), other.port()];
        server.write(&file(number), &service(number, port, &ports));
        let (name, namespace) = (format!("envoy{number}"), format!("lane{number}"));
        let bootstrap =
            Bootstrap::sidecar(server.grpc().port(), transport, &name, &namespace, json!({"app": "client"}));
        let mut envoy = Envoy::start(&bootstrap).await;
        envoy.ready().await;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let host = host(number);
        wait::until("the first response", async || {
            let reply = client::get(address, &host, "/").await?;
            if reply.status.is_success() { Ok(()) } else { Err(reply.status.to_string()) }
        })
        .await;
        let client = tokio::spawn(send(address, host, counts.clone()));
        Lane { number, port, backends: [one, other], client, _envoy: envoy }
    }

    fn write(&self, server: &DiscoveryProcess, backends: &[u16]) {
        server.write(&file(self.number), &service(self.number, self.port, backends));
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.client.abort();
    }
}

async fn send(address: SocketAddr, host: String, counts: Arc<RequestCounts>) {
    loop {
        let failure = match tokio::time::timeout(LIMIT, client::get(address, &host, "/")).await {
            Ok(Ok(reply)) if reply.status.is_success() => None,
            Ok(Ok(reply)) => Some(format!("{} {}", reply.status, reply.body)),
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no response in {LIMIT:?}")),
        };
        counts.requests.fetch_add(1, Ordering::Relaxed);
        if let Some(failure) = failure {
            counts.failed.fetch_add(1, Ordering::Relaxed);
            counts.first_failure.lock().get_or_insert(failure);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn file(number: usize) -> String {
    format!("lane{number}.yaml")
}

fn host(number: usize) -> String {
    format!("web.lane{number}.svc.cluster.local")
}

/// Visible in its namespace only: each Envoy has the port for itself.
fn service(number: usize, port: u16, backends: &[u16]) -> String {
    let endpoint = |backend: &u16| format!("{{address: 127.0.0.1, ports: {{http: {backend}}}}}");
    let endpoints: Vec<String> = backends.iter().map(endpoint).collect();
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: web, namespace: lane{number}}}\n\
         spec:\n  hosts: [{}]\n  exportTo: ['.']\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
         ports: [{{name: http, number: {port}, protocol: HTTP}}]\n  endpoints: [{}]\n",
        host(number),
        endpoints.join(", ")
    )
}
