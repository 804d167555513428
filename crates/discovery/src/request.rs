//! `pilot-discovery request`: one HTTP request to a running server's debug port, the answer on stdout.
//! istioctl runs this inside the server's container.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{Method, Request as HttpRequest};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::args::RequestFlags;

/// Sends the request and gives the body. An answer that is no success is an error with its body.
pub async fn send(request: &RequestFlags) -> Result<Bytes> {
    tokio::time::timeout(request.timeout, exchange(request)).await.context("could not get an answer in time")?
}

async fn exchange(request: &RequestFlags) -> Result<Bytes> {
    let method: Method = request.method.to_uppercase().parse().context("could not read the method")?;
    // istioctl leaves the first slash out.
    let path = format!("/{}", request.path.trim_start_matches('/'));
    let body = Full::new(Bytes::from(request.body.clone().unwrap_or_default()));
    let message = HttpRequest::builder().method(method).uri(&path).header("host", &request.address).body(body);
    let message = message.with_context(|| format!("could not read the path {path:?}"))?;
    let stream = TcpStream::connect(&request.address).await;
    let stream = stream.with_context(|| format!("could not connect to {}", request.address))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let (head, body) = sender.send_request(message).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    if !head.status.is_success() {
        bail!("received {}: {}", head.status, String::from_utf8_lossy(&body).trim_end());
    }
    Ok(body)
}
