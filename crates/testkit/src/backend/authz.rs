//! An authorization server for Envoy's ext_authz filter, over gRPC and HTTP. Requests with `x-let-me: in` are allowed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use prost::Message;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::{ServeTask, listen};

/// The header that allows a request, and its value.
pub const ALLOW_HEADER: (&str, &str) = ("x-let-me", "in");

const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";
const PERMISSION_DENIED: i32 = 7;

/// A running server; stopped on drop.
pub struct AuthzBackend {
    address: SocketAddr,
    checks: Arc<AtomicU64>,
    _task: ServeTask,
}

impl AuthzBackend {
    pub async fn start() -> AuthzBackend {
        let (listener, address) = listen((Ipv4Addr::LOCALHOST, 0).into()).await;
        let checks = Arc::default();
        let task = ServeTask(tokio::spawn(serve(listener, Arc::clone(&checks))));
        AuthzBackend { address, checks, _task: task }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Number of checks so far.
    pub fn checks(&self) -> u64 {
        self.checks.load(Ordering::SeqCst)
    }
}

async fn serve(listener: TcpListener, checks: Arc<AtomicU64>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let checks = Arc::clone(&checks);
        connections.spawn(async move {
            let service = service_fn(move |request| {
                checks.fetch_add(1, Ordering::SeqCst);
                answer(request)
            });
            let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

type AuthzResponse = Response<BoxBody<Bytes, Infallible>>;

async fn answer(request: Request<Incoming>) -> Result<AuthzResponse, Infallible> {
    if request.uri().path() != CHECK {
        let is_let_in = request.headers().get(ALLOW_HEADER.0).is_some_and(|value| value == ALLOW_HEADER.1);
        let mut response = Response::new(Full::new(Bytes::from_static(b"asked")).boxed());
        *response.status_mut() = if is_let_in { StatusCode::OK } else { StatusCode::FORBIDDEN };
        return Ok(response);
    }
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let check = CheckRequest::decode(body.get(5..).unwrap_or_default()).unwrap_or_default();
    let headers = check.attributes.and_then(|a| a.request).and_then(|r| r.http).unwrap_or_default().headers;
    let code =
        if headers.get(ALLOW_HEADER.0).is_some_and(|value| value == ALLOW_HEADER.1) { 0 } else { PERMISSION_DENIED };
    Ok(grpc(&CheckResponse { status: Some(CheckStatus { code }) }))
}

fn grpc(message: &impl Message) -> AuthzResponse {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.encoded_len()).unwrap_or_default());
    frame.extend_from_slice(&message.encode_to_vec());
    let trailers =
        HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))]);
    let body = Full::new(frame.freeze()).with_trailers(async { Some(Ok(trailers)) });
    let mut response = Response::new(body.boxed());
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

/// The fields of Envoy's messages that are used here.
#[derive(Clone, PartialEq, Message)]
struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    attributes: Option<Attributes>,
}

#[derive(Clone, PartialEq, Message)]
struct Attributes {
    #[prost(message, optional, tag = "4")]
    request: Option<CheckedRequest>,
}

#[derive(Clone, PartialEq, Message)]
struct CheckedRequest {
    #[prost(message, optional, tag = "2")]
    http: Option<CheckedHttpRequest>,
}

#[derive(Clone, PartialEq, Message)]
struct CheckedHttpRequest {
    #[prost(btree_map = "string, string", tag = "3")]
    headers: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<CheckStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct CheckStatus {
    #[prost(int32, tag = "1")]
    code: i32,
}
