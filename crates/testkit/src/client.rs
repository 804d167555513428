//! A plain HTTP/1.1 client: one request, one connection.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::Full;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::error::ReplyError;

/// A complete response.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

impl Reply {
    /// The body as JSON; null if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    /// The name of the testkit backend that responded; empty if none did.
    pub fn backend(&self) -> &str {
        self.header("x-backend")
    }

    /// The value of a header; empty if absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }
}

/// GET with this Host header.
pub async fn get(address: SocketAddr, host: &str, path: &str) -> Result<Reply, ReplyError> {
    get_with(address, host, path, &[]).await
}

/// GET with additional headers.
pub async fn get_with(
    address: SocketAddr,
    host: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Result<Reply, ReplyError> {
    let mut request = Request::get(path).header("host", host);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    send(address, request.body(String::new())?).await
}

/// Sends a request; the error describes what happened to the connection.
pub async fn send(address: SocketAddr, request: Request<String>) -> Result<Reply, ReplyError> {
    exchange(address, request).await.map_err(ReplyError::no_response(address))
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

async fn exchange(address: SocketAddr, request: Request<String>) -> Result<Reply, AnyError> {
    send_over(TcpStream::connect(address).await?, request).await
}

/// Sends a request over an open connection and closes it.
pub(crate) async fn send_over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<String>,
) -> Result<Reply, AnyError> {
    let request = request.map(|body| Full::new(Bytes::from(body)));
    let (head, body) = net::http::exchange(stream, request, net::http::UNLIMITED).await?.into_parts();
    Ok(Reply { status: head.status, headers: head.headers, body: String::from_utf8_lossy(&body).into_owned() })
}
