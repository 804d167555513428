//! HTTP backends of the shop. Each responds with its name; `front` also calls the others through its sidecar.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{Empty, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::shop::DemoWorkload;

/// Request headers that `front` passes on.
const FORWARDED: &[&str] = &["x-canary", "x-request-id"];
/// Maximum size of an answer.
const MAX_BODY: usize = 1 << 20;

/// Serves one workload for as long as the demo runs.
pub(super) async fn start(workload: &DemoWorkload) -> Result<()> {
    let (address, workload) = (workload.backend, Arc::new(workload.clone()));
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("could not listen on {address} for {}", workload.name()))?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let workload = Arc::clone(&workload);
            let service = service_fn(move |request| answer(Arc::clone(&workload), request));
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    Ok(())
}

async fn answer(workload: Arc<DemoWorkload>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let caller = caller(request.headers()).map_or(String::new(), |caller| format!(" for {caller}"));
    let (mut text, mut status) = (format!("{} {}{caller}\n", workload.app, workload.version), StatusCode::OK);
    for callee in workload.calls {
        let host = format!("{callee}.shop.svc.cluster.local");
        match get(workload.outbound, "/", &host, &forwarded(request.headers())).await {
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

/// The text of an answer that is an error, such as the reason why a sidecar is not ready. `None` if it is good.
pub(super) async fn refusal(address: SocketAddr, path: &str) -> Option<String> {
    let limit = Duration::from_secs(1);
    let answer = async {
        let request = Request::get(path).header("host", "localhost").body(Empty::<Bytes>::new())?;
        anyhow::Ok(net::http::exchange(net::http::connect(address).await?, request, MAX_BODY).await?)
    };
    match tokio::time::timeout(limit, answer).await {
        Ok(Ok(response)) if response.status().is_success() => None,
        Ok(Ok(response)) => Some(String::from_utf8_lossy(response.body()).into_owned()),
        Ok(Err(error)) => Some(format!("{error:#}")),
        Err(_) => Some("no answer within a second".to_owned()),
    }
}
