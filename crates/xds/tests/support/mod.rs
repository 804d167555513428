//! A control plane of a few lines, served on a free loopback port.
#![allow(clippy::unwrap_used)] // a fixture that cannot be built is a failed test

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use api::envoy::config::core::v3::Node;
use api::{Resource, TypeUrl};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::{Service, ServiceExt};
use xds::reflection::{Reflection, V1, V1Alpha};
use xds::{Client, Control, Event, Health, Limits, Options, Peer, ResourceSet, SERVICES};

type Sets = BTreeMap<TypeUrl, Arc<ResourceSet>>;

/// A control plane that shows everyone the same.
pub(crate) struct Mesh {
    world: watch::Sender<Arc<Sets>>,
    connected: watch::Sender<usize>,
}

impl Mesh {
    pub(crate) fn new(world: &[(TypeUrl, &[&str])]) -> Self {
        Self { world: watch::Sender::new(Arc::new(sets(world))), connected: watch::Sender::new(0) }
    }

    /// Replaces the world. Each resource is `name=content`.
    pub(crate) fn publish(&self, world: &[(TypeUrl, &[&str])]) {
        self.world.send_replace(Arc::new(sets(world)));
    }

    /// How many clients are connected.
    pub(crate) fn connected(&self) -> watch::Receiver<usize> {
        self.connected.subscribe()
    }
}

fn sets(world: &[(TypeUrl, &[&str])]) -> Sets {
    let resource = |text: &&str| {
        let name = text.split('=').next().unwrap_or_default();
        Resource::encoded(name, Bytes::from(text.to_string()))
    };
    let set = |(kind, texts): &(TypeUrl, &[&str])| {
        (kind.clone(), Arc::new(ResourceSet::new(kind.clone(), texts.iter().map(resource))))
    };
    world.iter().map(set).collect()
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
        Ok(Member { id: node.id, world, adopted, connected: self.connected.clone() })
    }
}

pub(crate) struct Member {
    id: String,
    world: watch::Receiver<Arc<Sets>>,
    adopted: Arc<Sets>,
    connected: watch::Sender<usize>,
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

    fn observe(&mut self, _: &Event<'_>) {}
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
    pub(crate) serving: watch::Sender<bool>,
    address: SocketAddr,
}

impl Server {
    pub(crate) async fn start(mesh: Mesh) -> Self {
        let mesh = Arc::new(mesh);
        let stop = CancellationToken::new();
        let options = Options { limits: Limits::default(), identifier: "loopback".into(), stop: stop.clone() };
        let serving = watch::Sender::new(true);
        let routes = xds::routes(Arc::clone(&mesh), options)
            .add_service(Health::new(serving.subscribe(), SERVICES))
            .add_service(Reflection::<V1>::new(SERVICES))
            .add_service(Reflection::<V1Alpha>::new(SERVICES));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tonic::transport::Server::builder().add_routes(routes);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { mesh, stop, serving, address }
    }

    pub(crate) async fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    /// Calls a method with one message of these bytes; the bytes of the first answer and the status.
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
