//! `pilot-discovery request`: sends one HTTP request to the debug port of a running server and prints the response.
//! istioctl runs it inside the server's container.

use anyhow::{Context, Result};
use bytes::Bytes;
use http::Method;

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
    Ok(net::http::call(method, &request.address, &path, request.body.clone().unwrap_or_default()).await?)
}
