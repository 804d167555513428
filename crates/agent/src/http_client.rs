//! A minimal HTTP client for Envoy's admin port: `pilot-agent request`, `pilot-agent wait` and draining.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{Method, Uri};
use tokio::time::{Instant, sleep, timeout};

use crate::args::{RequestArgs, WaitArgs};

/// Ports that `request` may use: Envoy's admin port and those of the agent.
const PORTS: [u16; 4] = [15000, 15004, 15020, 15021];

/// Runs `pilot-agent request` and returns the response body.
pub async fn request(request: &RequestArgs) -> Result<Bytes> {
    if !PORTS.contains(&request.port) {
        bail!("could not send a request to port {}: the allowed ports are {PORTS:?}", request.port);
    }
    let method = request.method.to_uppercase().parse().context("could not parse the HTTP method")?;
    let address = format!("localhost:{}", request.port);
    // istioctl omits the leading slash.
    let path = format!("/{}", request.path.trim_start_matches('/'));
    send(request.timeout, method, &address, &path, request.body.clone().unwrap_or_default()).await
}

/// Runs `pilot-agent wait`: polls the URL until it returns success, or fails after the timeout.
pub async fn wait(wait: &WaitArgs) -> Result<()> {
    let uri: Uri = wait.url.parse().with_context(|| format!("could not parse the URL {:?}", wait.url))?;
    let authority = uri.authority().with_context(|| format!("could not use the URL {:?}: it has no host", wait.url))?;
    let address = match authority.port() {
        Some(_) => authority.to_string(),
        None => format!("{authority}:80"),
    };
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let end = Instant::now() + Duration::from_secs(wait.timeout_seconds);
    loop {
        let limit = Duration::from_millis(wait.request_timeout_millis);
        let Err(last) = send(limit, Method::GET, &address, path, String::new()).await else { return Ok(()) };
        let pause = Duration::from_millis(wait.period_millis);
        if Instant::now() + pause > end {
            return Err(last.context(format!("Envoy was not ready within {} s", wait.timeout_seconds)));
        }
        sleep(pause).await;
    }
}

/// Sends one request on a new connection. A status other than 2xx is an error with the response body.
pub async fn send(limit: Duration, method: Method, address: &str, path: &str, body: String) -> Result<Bytes> {
    let exchange = timeout(limit, net::http::call(method, address, path, body));
    Ok(exchange.await.with_context(|| format!("no response from {address} within {limit:?}"))??)
}
