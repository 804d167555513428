//! HTTP backends of the shop. Each responds with its name; `front` also calls the others through its sidecar.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{Empty, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::DemoWorkload;

/// Workload n listens on this port plus n, as `samples/shop/config` says.
const FIRST_PORT: u16 = 28080;
/// Port of the sidecar for outbound calls.
const OUT_PORT: u16 = 19080;
/// Request headers that `front` passes on.
const FORWARDED: &[&str] = &["x-canary", "x-request-id"];
/// Maximum size of an answer.
const MAX_BODY: usize = 1 << 20;

/// Serves one workload for as long as the demo runs.
pub(super) async fn start(workload: &'static DemoWorkload, number: u8) -> Result<()> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, FIRST_PORT + u16::from(number)));
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("could not listen on {address} for {}", workload.name()))?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service_fn(move |request| answer(workload, number, request));
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    Ok(())
}

async fn answer(
    workload: &DemoWorkload,
    number: u8,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let caller = caller(request.headers()).map_or(String::new(), |caller| format!(" for {caller}"));
    let (mut text, mut status) = (format!("{} {}{caller}\n", workload.app, workload.version), StatusCode::OK);
    let sidecar = SocketAddr::from((Ipv4Addr::new(127, 0, 80, number), OUT_PORT));
    for callee in workload.calls {
        let host = format!("{callee}.shop.svc.cluster.local");
        match get(sidecar, "/", &host, &forwarded(request.headers())).await {
            Ok(body) => text.push_str(&format!("  {}\n", body.trim_end())),
            Err(error) => {
                text.push_str(&format!("  {callee}: {error:#}\n"));
                status = StatusCode::BAD_GATEWAY;
            }
        }
    }
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    Ok(response)
}

/// The SPIFFE identity of the caller, which its sidecar proved and this workload's sidecar wrote into a header.
fn caller(headers: &HeaderMap) -> Option<String> {
    let header = headers.get("x-forwarded-client-cert")?.to_str().ok()?;
    header.split([';', ',']).find_map(|part| part.strip_prefix("URI=")).map(str::to_owned)
}

fn forwarded(headers: &HeaderMap) -> Vec<(&'static str, String)> {
    let text = |name: &'static str| Some((name, headers.get(name)?.to_str().ok()?.to_owned()));
    FORWARDED.iter().filter_map(|name| text(name)).collect()
}

/// The body of a good answer; anything else is an error.
pub(super) async fn get(address: SocketAddr, path: &str, host: &str, headers: &[(&str, String)]) -> Result<String> {
    let limit = Duration::from_secs(5);
    tokio::time::timeout(limit, fetch(address, path, host, headers)).await.context("no answer within 5 s")?
}

async fn fetch(address: SocketAddr, path: &str, host: &str, headers: &[(&str, String)]) -> Result<String> {
    let mut request = Request::get(path).header("host", host);
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    let request = request.body(Empty::<Bytes>::new())?;
    let response = net::http::exchange(net::http::connect(address).await?, request, MAX_BODY).await?;
    if !response.status().is_success() {
        bail!("{}", response.status());
    }
    Ok(String::from_utf8_lossy(response.body()).into_owned())
}
