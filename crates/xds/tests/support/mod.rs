//! A control plane of a few lines, served on a free loopback port.
#![allow(clippy::unwrap_used)] // a fixture that cannot be built fails the test
#![allow(dead_code)] // each test file uses its part of it

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use api::envoy::config::core::v3::Node;
use api::{Resource, TypeUrl};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::{Service, ServiceExt};
use xds::{Client, Control, Event, Options, Peer, ResourceSet};

pub(crate) type World = Vec<(TypeUrl, Vec<Resource>)>;
type Sets = BTreeMap<TypeUrl, Arc<ResourceSet>>;

/// A control plane that serves the same resources to every client.
pub(crate) struct Mesh {
    world: watch::Sender<Arc<Sets>>,
    connected: watch::Sender<usize>,
    sent: Arc<Mutex<BTreeMap<TypeUrl, usize>>>,
}

impl Mesh {
    /// Resources with the content `name=content`.
    pub(crate) fn new(world: &[(TypeUrl, &[&str])]) -> Self {
        Self::of(texts(world))
    }

    pub(crate) fn of(world: World) -> Self {
        Self { world: watch::Sender::new(sets(world)), connected: watch::Sender::new(0), sent: Arc::default() }
    }

    /// Replaces all resources by ones with the content `name=content`.
    pub(crate) fn publish(&self, world: &[(TypeUrl, &[&str])]) {
        self.replace(texts(world));
    }

    pub(crate) fn replace(&self, world: World) {
        self.world.send_replace(sets(world));
    }

    /// Resources and removals sent since the last call, by type.
    pub(crate) fn sent(&self) -> BTreeMap<TypeUrl, usize> {
        std::mem::take(&mut self.sent.lock().unwrap())
    }

    /// How many clients are connected.
    pub(crate) fn connected(&self) -> watch::Receiver<usize> {
        self.connected.subscribe()
    }
}

fn texts(world: &[(TypeUrl, &[&str])]) -> World {
    let resource = |text: &&str| {
        let name = text.split('=').next().unwrap_or_default();
        Resource::encoded(name, Bytes::from(text.to_string()))
    };
    world.iter().map(|(kind, texts)| (kind.clone(), texts.iter().map(resource).collect())).collect()
}

fn sets(world: World) -> Arc<Sets> {
    let set = |(kind, resources): (TypeUrl, Vec<Resource>)| (kind.clone(), Arc::new(ResourceSet::new(kind, resources)));
    Arc::new(world.into_iter().map(set).collect())
}

impl Control for Mesh {
    type Client = Member;

    async fn connect(&self, node: Node, peer: Peer) -> Result<Member, Status> {
        assert!(peer.address.is_some_and(|address| address.ip().is_loopback()));
        if node.id == "unready" {
            return Err(Status::unavailable("sources are not in sync"));
        }
        self.connected.send_modify(|count| *count += 1);
        let mut world = self.world.subscribe();
        let adopted = world.borrow_and_update().clone();
        Ok(Member { id: node.id, world, adopted, connected: self.connected.clone(), sent: self.sent.clone() })
    }
}

pub(crate) struct Member {
    id: String,
    world: watch::Receiver<Arc<Sets>>,
    adopted: Arc<Sets>,
    connected: watch::Sender<usize>,
    sent: Arc<Mutex<BTreeMap<TypeUrl, usize>>>,
}

impl Client for Member {
    async fn changed(&mut self) {
        if self.world.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.adopted = self.world.borrow_and_update().clone();
    }

    fn current(&mut self, kind: &TypeUrl) -> Option<Arc<ResourceSet>> {
        assert_ne!(self.id, "panics", "as this test wants");
        self.adopted.get(kind).cloned()
    }

    fn observe(&mut self, event: &Event<'_>) {
        if let Event::Sent { kind, resources, removed, .. } = *event {
            *self.sent.lock().unwrap().entry(kind.clone()).or_default() += resources + removed;
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.connected.send_modify(|count| *count -= 1);
    }
}

/// A running server; it ends with the test's runtime.
pub(crate) struct Server {
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) stop: CancellationToken,
    address: SocketAddr,
    running: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Server {
    pub(crate) async fn start(mesh: Mesh) -> Self {
        Self::start_at(Arc::new(mesh), 0).await
    }

    async fn start_at(mesh: Arc<Mesh>, port: u16) -> Self {
        let stop = CancellationToken::new();
        let options = Options { identifier: "loopback".into(), stop: stop.clone(), ..Options::default() };
        let routes = xds::routes(Arc::clone(&mesh), options);
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tonic::transport::Server::builder().add_routes(routes);
        let stopped = stop.clone().cancelled_owned();
        let running = tokio::spawn(server.serve_with_incoming_shutdown(TcpListenerStream::new(listener), stopped));
        Self { mesh, stop, address, running }
    }

    /// Stops this server and starts another on the same port, which shares nothing but the mesh.
    pub(crate) async fn restart(self) -> Self {
        self.stop.cancel();
        self.running.await.unwrap().unwrap();
        Self::start_at(self.mesh, self.address.port()).await
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) async fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    /// Calls a method with one message of these bytes; returns the bytes of the first response and the status.
    pub(crate) async fn call(&self, path: &str, message: &[u8]) -> (Vec<u8>, Code) {
        let mut channel = self.channel().await;
        let mut frame = vec![0];
        frame.extend_from_slice(&(message.len() as u32).to_be_bytes());
        frame.extend_from_slice(message);
        let request = Request::post(path)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(tonic::body::Body::new(Full::new(Bytes::from(frame))))
            .unwrap();
        let response = channel.ready().await.unwrap().call(request).await.unwrap();
        let headers = Status::from_header_map(response.headers());
        let collected = http_body_util::BodyExt::collect(response.into_body()).await.unwrap();
        let status = collected.trailers().and_then(Status::from_header_map).or(headers).unwrap();
        (collected.to_bytes().get(5..).unwrap_or_default().to_vec(), status.code())
    }
}

pub(crate) fn node(id: &str) -> Node {
    Node { id: id.to_owned(), ..Node::default() }
}
