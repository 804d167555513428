//! The name table in Envoy's xDS stream, with a fake control plane: the agent consumes it and Envoy never sees it.

use std::future::pending;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use agent::metrics::Metrics;
use agent::relay::{Relay, RelayOptions, Upstream};
use api::envoy::config::core::v3::Node;
use api::nds::{NameInfo, NameTable};
use api::{Resource, TypeUrl};
use testkit::wait;
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Server};
use xds::client::{DeltaClient, Held, SotwClient};
use xds::{Client, Control, Event, Peer, ResourceSet};

/// A control plane with one listener and a name table; records ACKs, NACKs and tokens.
struct FakeControlPlane {
    table: watch::Receiver<Resource>,
    acknowledged: Arc<Mutex<Vec<String>>>,
    tokens: Arc<Mutex<Vec<String>>>,
}

struct Session {
    table: watch::Receiver<Resource>,
    acknowledged: Arc<Mutex<Vec<String>>>,
}

impl Control for FakeControlPlane {
    type Client = Session;

    async fn connect(&self, _: Node, peer: Peer) -> Result<Session, Status> {
        let token = peer.headers.get("authorization").and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
        let cluster = peer.headers.get("clusterid").and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
        self.tokens.lock().unwrap().push(format!("{token} {cluster}"));
        Ok(Session { table: self.table.clone(), acknowledged: Arc::clone(&self.acknowledged) })
    }
}

impl Client for Session {
    async fn changed(&mut self) {
        if self.table.changed().await.is_err() {
            pending::<()>().await;
        }
    }

    fn current(&mut self, kind: &TypeUrl) -> Option<Arc<ResourceSet>> {
        let resource = match kind {
            kind if *kind == TypeUrl::NAME_TABLE => self.table.borrow().clone(),
            kind if *kind == TypeUrl::LISTENER => Resource::encoded("listener", bytes::Bytes::from_static(b"")),
            _ => return None,
        };
        Some(Arc::new(ResourceSet::new(kind.clone(), [resource])))
    }

    fn observe(&mut self, event: &Event<'_>) {
        let noted = match event {
            Event::Acked { kind, .. } => format!("ACK {kind}"),
            Event::Nacked { kind, .. } => format!("NACK {kind}"),
            _ => return,
        };
        self.acknowledged.lock().unwrap().push(noted);
    }
}

struct Fixture {
    table: watch::Sender<Resource>,
    names: watch::Receiver<Option<Arc<NameTable>>>,
    acknowledged: Arc<Mutex<Vec<String>>>,
    tokens: Arc<Mutex<Vec<String>>>,
    channel: Channel,
    token: std::path::PathBuf,
    stop: CancellationToken,
    _folder: tempfile::TempDir,
}

fn table(hosts: &[&str]) -> Resource {
    let info = NameInfo { ips: vec!["10.0.0.1".into()], ..NameInfo::default() };
    let table = hosts.iter().map(|host| ((*host).to_owned(), info.clone())).collect();
    Resource::new("", &NameTable { table })
}

impl Fixture {
    async fn start() -> Fixture {
        let (sender, receiver) = watch::channel(table(&["a.example.com"]));
        let (acknowledged, tokens, stop) = (Arc::default(), Arc::default(), CancellationToken::new());
        let control_plane =
            FakeControlPlane { table: receiver, acknowledged: Arc::clone(&acknowledged), tokens: Arc::clone(&tokens) };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let options = xds::Options { identifier: "test".into(), stop: stop.clone(), ..xds::Options::default() };
        let routes = xds::routes(Arc::new(control_plane), options);
        tokio::spawn(Server::builder().add_routes(routes).serve_with_incoming(TcpListenerStream::new(listener)));
        let folder = tempfile::tempdir().unwrap();
        let (socket, token) = (folder.path().join("XDS"), folder.path().join("token"));
        std::fs::write(&token, "first\n").unwrap();
        let mut upstream = Upstream::plain(&address.to_string());
        upstream.token = Some(token.clone());
        upstream.headers.push((http::HeaderName::from_static("clusterid"), http::HeaderValue::from_static("west")));
        let (names, latest) = watch::channel(None);
        let options = RelayOptions::new(socket.clone(), upstream);
        let relay = Relay::bind(options, Some(names), Arc::new(Metrics::default())).unwrap();
        tokio::spawn(relay.serve(stop.clone()));
        let channel = channel(socket).await;
        Fixture { table: sender, names: latest, acknowledged, tokens, channel, token, stop, _folder: folder }
    }

    async fn knows(&mut self, hosts: &[&str]) {
        let names = self.names.clone();
        let hosts = hosts.join(" ");
        wait::until("the name table", async || {
            let known = names.borrow().as_ref().map(|t| t.table.keys().cloned().collect::<Vec<_>>().join(" "));
            if known.as_ref() == Some(&hosts) { Ok(()) } else { Err(format!("{known:?}")) }
        })
        .await;
    }

    async fn observed(&self, wanted: &str, times: usize) {
        wait::until(wanted, async || {
            let observed = self.acknowledged.lock().unwrap().clone();
            if observed.iter().filter(|h| *h == wanted).count() >= times {
                Ok(())
            } else {
                Err(format!("{observed:?}"))
            }
        })
        .await;
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn channel(socket: std::path::PathBuf) -> Channel {
    let connector = tower::service_fn(move |_: http::Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(hyper_util::rt::TokioIo::new) }
    });
    Endpoint::from_static("http://relay").connect_with_connector(connector).await.unwrap()
}

fn node() -> Node {
    Node { id: "sidecar~127.0.0.1~a.shop~shop.svc.cluster.local".into(), ..Node::default() }
}

const NAMES_ACK: &str = "ACK type.googleapis.com/istio.networking.nds.v1.NameTable";

#[tokio::test]
async fn agent_consumes_the_name_table_over_sotw() {
    let mut fixture = Fixture::start().await;
    let mut client = SotwClient::open(fixture.channel.clone(), node(), &TypeUrl::LISTENER, &[]).await.unwrap();
    let response = client.next().await.unwrap().unwrap();
    assert_eq!(response.type_url, TypeUrl::LISTENER.as_str());
    client.ack(&response);
    fixture.knows(&["a.example.com"]).await;
    fixture.observed(NAMES_ACK, 1).await;
    fixture.table.send_replace(table(&["a.example.com", "b.example.com"]));
    fixture.knows(&["a.example.com", "b.example.com"]).await;
    fixture.observed(NAMES_ACK, 2).await;
}

#[tokio::test]
async fn agent_consumes_the_name_table_over_delta() {
    let mut fixture = Fixture::start().await;
    let mut client =
        DeltaClient::open(fixture.channel.clone(), node(), Held::new(), &TypeUrl::LISTENER, &[]).await.unwrap();
    let response = client.next().await.unwrap().unwrap();
    assert_eq!(response.type_url, TypeUrl::LISTENER.as_str());
    client.ack(&response);
    fixture.knows(&["a.example.com"]).await;
    fixture.table.send_replace(table(&["c.example.com"]));
    fixture.knows(&["c.example.com"]).await;
    fixture.observed(NAMES_ACK, 2).await;
}

#[tokio::test]
async fn invalid_table_is_rejected_and_the_last_one_stays() {
    let mut fixture = Fixture::start().await;
    let _client = SotwClient::open(fixture.channel.clone(), node(), &TypeUrl::LISTENER, &[]).await.unwrap();
    fixture.knows(&["a.example.com"]).await;
    fixture.table.send_replace(Resource::encoded("", bytes::Bytes::from_static(&[0xff; 9])));
    fixture.observed("NACK type.googleapis.com/istio.networking.nds.v1.NameTable", 1).await;
    fixture.knows(&["a.example.com"]).await;
}

#[tokio::test]
async fn token_is_read_for_every_stream() {
    let fixture = Fixture::start().await;
    let _first = SotwClient::open(fixture.channel.clone(), node(), &TypeUrl::LISTENER, &[]).await.unwrap();
    std::fs::write(&fixture.token, "second").unwrap();
    let _second = SotwClient::open(fixture.channel.clone(), node(), &TypeUrl::LISTENER, &[]).await.unwrap();
    wait::until("both tokens", async || {
        let tokens = fixture.tokens.lock().unwrap().clone();
        if tokens == ["Bearer first west", "Bearer second west"] { Ok(()) } else { Err(format!("{tokens:?}")) }
    })
    .await;
}

#[tokio::test]
async fn other_services_are_not_relayed() {
    let fixture = Fixture::start().await;
    let mut grpc = tonic::client::Grpc::new(fixture.channel.clone());
    grpc.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = tonic_prost_codec::Empty;
    let refused = grpc.unary(tonic::Request::new(()), path, codec).await.map(|_| ()).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unimplemented);
}

/// A gRPC codec for empty messages.
mod tonic_prost_codec {
    use tonic::Status;
    use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

    #[derive(Clone, Copy)]
    pub(super) struct Empty;

    impl Codec for Empty {
        type Encode = ();
        type Decode = ();
        type Encoder = Empty;
        type Decoder = Empty;

        fn encoder(&mut self) -> Empty {
            Empty
        }

        fn decoder(&mut self) -> Empty {
            Empty
        }
    }

    impl Encoder for Empty {
        type Item = ();
        type Error = Status;

        fn encode(&mut self, (): (), _: &mut EncodeBuf<'_>) -> Result<(), Status> {
            Ok(())
        }
    }

    impl Decoder for Empty {
        type Item = ();
        type Error = Status;

        fn decode(&mut self, _: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
            Ok(Some(()))
        }
    }
}
