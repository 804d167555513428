//! Who may speak xDS on the TLS port, and for how long.

use std::time::{Duration, Instant};

use api::envoy::config::core::v3::Node;
use api::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use serde_json::json;
use testkit::certificates::Certificate;
use testkit::tls::TlsClient;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::fixture::{Mesh, now};

/// An open ADS stream; its request body ends on drop.
pub(crate) struct AdsStream {
    head: HeaderMap,
    body: Incoming,
    requests: mpsc::Sender<Result<Frame<Bytes>, std::convert::Infallible>>,
}

fn framed(request: &DiscoveryRequest) -> Frame<Bytes> {
    let content = request.encode_to_vec();
    Frame::data([&[0], &(content.len() as u32).to_be_bytes()[..], &content].concat().into())
}

/// Opens a stream and requests all clusters as a node of a namespace.
pub(crate) async fn open<S>(stream: S, token: Option<&str>, namespace: &str) -> AdsStream
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let id = format!("sidecar~10.0.0.1~front.{namespace}~{namespace}.svc.cluster.local");
    open_as(stream, token, Node { id, ..Node::default() }).await
}

/// The same with another node.
pub(crate) async fn open_as<S>(stream: S, token: Option<&str>, node: Node) -> AdsStream
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let request = DiscoveryRequest {
        type_url: "type.googleapis.com/envoy.config.cluster.v3.Cluster".to_owned(),
        node: Some(node),
        ..DiscoveryRequest::default()
    };
    open_with(stream, token, request).await
}

/// The same with another first request.
pub(crate) async fn open_with<S>(stream: S, token: Option<&str>, request: DiscoveryRequest) -> AdsStream
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let (requests, receiver) = mpsc::channel(1);
    requests.send(Ok(framed(&request))).await.unwrap();
    let path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
    let mut request = Request::post(format!("http://xds{path}")).header("content-type", "application/grpc");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request.body(StreamBody::new(ReceiverStream::new(receiver))).unwrap();
    let (head, body) = sender.send_request(request).await.unwrap().into_parts();
    AdsStream { head: head.headers, body, requests }
}

impl AdsStream {
    /// Sends a further request.
    pub(crate) async fn send(&self, request: &DiscoveryRequest) {
        self.requests.send(Ok(framed(request))).await.unwrap();
    }

    /// Whether there was a response, and the status with which the stream ended; `None` if it is open after the limit.
    pub(crate) async fn end(&mut self, limit: Duration) -> (bool, Option<Code>) {
        let mut has_response = false;
        let read = async {
            while let Some(Ok(frame)) = self.body.frame().await {
                match frame.into_trailers() {
                    Ok(trailers) => return code(&trailers),
                    Err(_) => has_response = true,
                }
            }
            code(&self.head)
        };
        let ended = tokio::time::timeout(limit, read).await.ok().flatten();
        (has_response, ended)
    }

    /// The first response, or the status with which the stream ended before one.
    pub(crate) async fn response(&mut self) -> Result<DiscoveryResponse, Option<Code>> {
        let mut received = Vec::new();
        while let Some(Ok(frame)) = self.body.frame().await {
            match frame.into_data() {
                Ok(data) => received.extend_from_slice(&data),
                Err(frame) => return Err(frame.trailers_ref().and_then(code)),
            }
            // A flag, and the length of the message.
            if let Some((head, rest)) = received.split_at_checked(5) {
                let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
                if let Some(message) = rest.get(..length) {
                    return Ok(DiscoveryResponse::decode(message).unwrap());
                }
            }
        }
        Err(code(&self.head))
    }
}

fn code(headers: &HeaderMap) -> Option<Code> {
    let status = headers.get("grpc-status")?.to_str().ok()?.parse::<i32>().ok()?;
    Some(Code::from(status))
}

pub(crate) async fn secured(
    mesh: &Mesh,
    own: Option<&Certificate>,
) -> impl AsyncRead + AsyncWrite + Send + Unpin + 'static + use<> {
    let tls = TlsClient::trusting(&mesh.roots().await, own, &["h2"]);
    tls.connect(mesh.secure, "istiod.istio-system.svc").await.unwrap()
}

const SHORT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_client_must_be_who_its_node_says() {
    let mesh = Mesh::start(&[]).await;
    let (good, own) = (mesh.token("front"), mesh.serves_an_honest_caller().await);
    let expired = mesh.token_with("front", json!({"exp": now() - 1}));
    for (what, token, certificate, namespace, expected) in [
        ("no credentials", None, None, "shop", Some(Code::Unauthenticated)),
        ("an expired token", Some(&expired), None, "shop", Some(Code::Unauthenticated)),
        ("a token of another namespace", Some(&good), None, "bank", Some(Code::PermissionDenied)),
        ("a certificate of another namespace", None, Some(&own), "bank", Some(Code::PermissionDenied)),
        ("a token", Some(&good), None, "shop", None),
        ("a certificate", None, Some(&own), "shop", None),
    ] {
        let stream = secured(&mesh, certificate).await;
        let mut stream = open(stream, token.map(String::as_str), namespace).await;
        let limit = if expected.is_some() { Duration::from_secs(10) } else { SHORT };
        assert_eq!(stream.end(limit).await, (expected.is_none(), expected), "{what}");
    }
    let plain = TcpStream::connect(mesh.server.grpc()).await.unwrap();
    assert_eq!(open(plain, None, "shop").await.end(SHORT).await, (true, None), "plain text needs no identity");
}

#[tokio::test]
async fn switches_of_authentication_are_upstreams() {
    let off = Mesh::start(&[("XDS_AUTH", "false")]).await;
    let stream = secured(&off, None).await;
    assert_eq!(open(stream, None, "shop").await.end(SHORT).await, (true, None));
    let strict = Mesh::start(&[("XDS_AUTH_PLAINTEXT", "true")]).await;
    let plain = || async { TcpStream::connect(strict.server.grpc()).await.unwrap() };
    let refused = open(plain().await, None, "shop").await.end(Duration::from_secs(10)).await;
    assert_eq!(refused, (false, Some(Code::Unauthenticated)));
    let token = strict.token("front");
    assert_eq!(open(plain().await, Some(&token), "shop").await.end(SHORT).await, (true, None));
    // An authenticated client may be any node; others are refused.
    let lenient = Mesh::start(&[("PILOT_ENABLE_XDS_IDENTITY_CHECK", "false")]).await;
    let token = lenient.token("front");
    let stream = secured(&lenient, None).await;
    assert_eq!(open(stream, Some(&token), "bank").await.end(SHORT).await, (true, None));
    let stream = secured(&lenient, None).await;
    let refused = open(stream, None, "bank").await.end(Duration::from_secs(10)).await;
    assert_eq!(refused, (false, Some(Code::Unauthenticated)));
}

#[tokio::test]
async fn a_stream_ends_with_its_token() {
    let mesh = Mesh::start(&[]).await;
    let token = mesh.token_with("front", json!({"exp": now() + 3}));
    let begun = Instant::now();
    let mut stream = open(secured(&mesh, None).await, Some(&token), "shop").await;
    assert_eq!(stream.end(Duration::from_secs(60)).await, (true, Some(Code::Unauthenticated)));
    assert!(begun.elapsed() >= Duration::from_secs(2), "not before its end");
    assert_eq!(mesh.metric("pilotage_closed_streams{reason=\"expired\"}").await, 1.0);
}

#[tokio::test]
async fn a_stream_whose_key_was_withdrawn_ends_at_the_next_check() {
    let mesh = Mesh::start(&[("PILOTAGE_IDENTITY_RECHECK", "2s")]).await;
    let token = mesh.token("front");
    let mut stream = open(secured(&mesh, None).await, Some(&token), "shop").await;
    assert_eq!(stream.end(Duration::from_secs(5)).await, (true, None), "a good token passes every check");
    let other = trust::key::PrivateKey::generate(trust::key::KeyKind::P256).unwrap();
    std::fs::write(mesh.path("keys.json"), trust::token::key_set(&other, "test").unwrap()).unwrap();
    assert_eq!(stream.end(Duration::from_secs(60)).await.1, Some(Code::Unauthenticated));
    assert_eq!(mesh.metric("pilotage_closed_streams{reason=\"refused\"}").await, 1.0);
}
