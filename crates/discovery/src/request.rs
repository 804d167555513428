//! `pilot-discovery request`: sends one HTTP request to the debug port of a running server and prints the response.
//! istioctl runs it inside the server's container.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{Method, Request as HttpRequest};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::args::RequestFlags;

/// Sends the request and returns the body. A status other than 2xx is an error that contains the body.
pub async fn send(request: &RequestFlags) -> Result<Bytes> {
    tokio::time::timeout(request.timeout, exchange(request))
        .await
        .with_context(|| format!("could not get a response from {} within {:?}", request.address, request.timeout))?
}

async fn exchange(request: &RequestFlags) -> Result<Bytes> {
    let method: Method = request
        .method
        .to_uppercase()
        .parse()
        .with_context(|| format!("could not use the HTTP method {:?}", request.method))?;
    // istioctl omits the leading slash.
    let path = format!("/{}", request.path.trim_start_matches('/'));
    let body = Full::new(Bytes::from(request.body.clone().unwrap_or_default()));
    let message = HttpRequest::builder().method(method).uri(&path).header("host", &request.address).body(body);
    let message = message.with_context(|| format!("could not use the path {path:?}"))?;
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
