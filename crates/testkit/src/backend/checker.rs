//! A server that is asked whether a request may pass, over gRPC (ext_authz) or as a request of its own:
//! those that carry `x-let-me: in` may.

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

use super::{Running, listen};

/// The header that is looked at, and what it must say.
pub const TICKET: (&str, &str) = ("x-let-me", "in");

const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";
const PERMISSION_DENIED: i32 = 7;

/// Gone on drop.
pub struct Checker {
    address: SocketAddr,
    asked: Arc<AtomicU64>,
    _task: Running,
}

impl Checker {
    pub async fn start() -> Checker {
        let (listener, address) = listen((Ipv4Addr::LOCALHOST, 0).into()).await;
        let asked = Arc::default();
        let task = Running(tokio::spawn(serve(listener, Arc::clone(&asked))));
        Checker { address, asked, _task: task }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// How often it was asked.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }
}

async fn serve(listener: TcpListener, asked: Arc<AtomicU64>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let asked = Arc::clone(&asked);
        connections.spawn(async move {
            let service = service_fn(move |request| {
                asked.fetch_add(1, Ordering::SeqCst);
                answer(request)
            });
            let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

type Answer = Response<BoxBody<Bytes, Infallible>>;

async fn answer(request: Request<Incoming>) -> Result<Answer, Infallible> {
    if request.uri().path() != CHECK {
        let is_let_in = request.headers().get(TICKET.0).is_some_and(|value| value == TICKET.1);
        let mut response = Response::new(Full::new(Bytes::from_static(b"asked")).boxed());
        *response.status_mut() = if is_let_in { StatusCode::OK } else { StatusCode::FORBIDDEN };
        return Ok(response);
    }
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let check = CheckRequest::decode(body.get(5..).unwrap_or_default()).unwrap_or_default();
    let headers = check.attributes.and_then(|a| a.request).and_then(|r| r.http).unwrap_or_default().headers;
    let code = if headers.get(TICKET.0).is_some_and(|value| value == TICKET.1) { 0 } else { PERMISSION_DENIED };
    Ok(grpc(&CheckResponse { status: Some(Verdict { code }) }))
}

fn grpc(message: &impl Message) -> Answer {
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

/// The parts of Envoy's messages that are read and written here.
#[derive(Clone, PartialEq, Message)]
struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    attributes: Option<Attributes>,
}

#[derive(Clone, PartialEq, Message)]
struct Attributes {
    #[prost(message, optional, tag = "4")]
    request: Option<Asked>,
}

#[derive(Clone, PartialEq, Message)]
struct Asked {
    #[prost(message, optional, tag = "2")]
    http: Option<HttpAsked>,
}

#[derive(Clone, PartialEq, Message)]
struct HttpAsked {
    #[prost(btree_map = "string, string", tag = "3")]
    headers: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<Verdict>,
}

#[derive(Clone, PartialEq, Message)]
struct Verdict {
    #[prost(int32, tag = "1")]
    code: i32,
}
