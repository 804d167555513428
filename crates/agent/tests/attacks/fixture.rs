//! Fixture: a control plane whose listeners name file secrets, and a pilot-agent process. The test acts as Envoy and
//! connects to the agent's sockets.

use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::envoy::config::core::v3::Node;
use api::envoy::extensions::transport_sockets::tls::v3::{CommonTlsContext, SdsSecretConfig};
use api::{Resource, TypeUrl};
use hyper_util::rt::TokioIo;
use prost::Message;
use tempfile::TempDir;
use testkit::process::Process;
use testkit::{client, ports, wait};
use tokio::net::{TcpListener, UnixStream};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Server};
use xds::client::SotwClient;
use xds::{Client, Control, Event, Peer, ResourceSet};

/// A running agent without Envoy.
pub(crate) struct Agent {
    pub(crate) process: Process,
    pub(crate) status: SocketAddr,
    folder: TempDir,
    _stop: DropGuard,
}

impl Agent {
    /// Starts an agent whose control plane names these secrets; `certs` below its folder is allowed.
    pub(crate) async fn start(folder: TempDir, names: &[String]) -> Agent {
        let stop = CancellationToken::new();
        let discovery = control_plane(names, stop.clone()).await;
        let port = ports::free();
        let proxy = folder.path().join("proxy");
        let line = format!(
            "proxy sidecar --ip 127.0.0.1 --id a-1.shop --domain shop.svc.cluster.local --discoveryAddress {discovery} \
             --controlPlaneAuthPolicy NONE --statusPort {port} --configPath {}",
            proxy.display()
        );
        let args: Vec<&str> = line.split_whitespace().collect();
        let certs = folder.path().join("certs").display().to_string();
        let env = [("DISABLE_ENVOY".to_owned(), "true".to_owned()), ("PILOTAGE_SECRET_FOLDERS".to_owned(), certs)];
        let process = Process::start("pilot-agent", Path::new(env!("CARGO_BIN_EXE_pilot-agent")), &args, &env);
        let status = (Ipv4Addr::LOCALHOST, port).into();
        let mut agent = Agent { process, status, folder, _stop: stop.drop_guard() };
        wait::until("the agent's sockets", async || {
            agent.process.check_alive();
            match (agent.socket("XDS").exists(), agent.socket("SDS").exists()) {
                (true, true) => Ok(()),
                there => Err(format!("{there:?}")),
            }
        })
        .await;
        agent
    }

    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join("proxy").join(name)
    }

    /// Gets the listeners through the relay, as Envoy does before it requests their secrets.
    pub(crate) async fn configure(&self) {
        let channel = channel(self.socket("XDS")).await;
        let mut stream = SotwClient::open(channel, node(), &TypeUrl::LISTENER, &[]).await.unwrap();
        stream.next().await.unwrap().expect("listeners");
    }

    /// Requests one secret on a new stream.
    pub(crate) async fn secret(&self, name: &str) -> SotwClient {
        let channel = channel(self.socket("SDS")).await;
        SotwClient::open(channel, node(), &TypeUrl::SECRET, &[name]).await.unwrap()
    }

    pub(crate) async fn logs(&self, text: &str) {
        wait::until(&format!("a line with {text:?}"), async || {
            let output = self.process.output();
            if output.contains(text) { Ok(()) } else { Err(output) }
        })
        .await;
    }

    /// Polls readiness until cancelled; returns the longest response time.
    pub(crate) fn probe(&self, stop: CancellationToken) -> JoinHandle<Duration> {
        let status = self.status;
        tokio::spawn(async move {
            let mut longest = Duration::ZERO;
            while !stop.is_cancelled() {
                let start_time = Instant::now();
                client::get(status, "localhost", "/healthz/ready").await.expect("an answer to a probe");
                longest = longest.max(start_time.elapsed());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            longest
        })
    }
}

pub(crate) async fn channel(socket: PathBuf) -> Channel {
    let connector = tower::service_fn(move |_: http::Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://agent").connect_with_connector(connector).await.unwrap()
}

fn node() -> Node {
    Node { id: "sidecar~127.0.0.1~a-1.shop~shop.svc.cluster.local".into(), ..Node::default() }
}

/// Serves one listener that names these secrets.
async fn control_plane(names: &[String], stop: CancellationToken) -> SocketAddr {
    let secret = |name: &String| SdsSecretConfig { name: name.clone(), ..Default::default() };
    let context = CommonTlsContext {
        tls_certificate_sds_secret_configs: names.iter().map(secret).collect(),
        ..Default::default()
    };
    let listener = Resource::encoded("listener", context.encode_to_vec());
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = tcp.local_addr().unwrap();
    let options = xds::Options { identifier: "test".into(), stop, ..xds::Options::default() };
    let routes = xds::routes(Arc::new(FakeControlPlane(listener)), options);
    tokio::spawn(Server::builder().add_routes(routes).serve_with_incoming(TcpListenerStream::new(tcp)));
    address
}

#[derive(Clone)]
struct FakeControlPlane(Resource);

impl Control for FakeControlPlane {
    type Client = FakeControlPlane;

    async fn connect(&self, _: Node, _: Peer) -> Result<FakeControlPlane, Status> {
        Ok(self.clone())
    }
}

impl Client for FakeControlPlane {
    async fn changed(&mut self) {
        pending().await
    }

    fn current(&mut self, kind: &TypeUrl) -> Option<Arc<ResourceSet>> {
        let is_listener = *kind == TypeUrl::LISTENER;
        is_listener.then(|| Arc::new(ResourceSet::new(kind.clone(), [self.0.clone()])))
    }

    fn observe(&mut self, _: &Event<'_>) {}
}
