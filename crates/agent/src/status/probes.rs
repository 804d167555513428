//! Application probes. The injector redirects kubelet's probes to the agent, because kubelet cannot reach the application
//! with mutual TLS; the agent performs them as kubelet would.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST, LOCATION, TE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{Empty, Full};
use hyper::body::Incoming;
use prost::Message;
use serde::Deserialize;
use tokio::time::timeout;
use tracing::info;

use super::body::StatusBody;
use super::fetch;

/// Maximum size of a probe response body.
const LIMIT: usize = 10 << 10;

/// kubelet's limit.
const MAX_REDIRECTS: usize = 10;

/// A probe of one container.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct Prober {
    http_get: Option<HttpGet>,
    tcp_socket: Option<TcpSocket>,
    grpc: Option<Grpc>,
    #[serde(default)]
    timeout_seconds: u64,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct HttpGet {
    #[serde(default)]
    path: String,
    port: u16,
    #[serde(default)]
    scheme: String,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct TcpSocket {
    port: u16,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct Grpc {
    port: u16,
    #[serde(default)]
    service: Option<String>,
}

/// Probes by the path that kubelet requests.
#[derive(Debug, Default)]
pub(super) struct AppProbes {
    probers: BTreeMap<String, Prober>,
    /// The pod's address, where kubelet would probe the application.
    address: Option<IpAddr>,
    status_port: u16,
}

impl AppProbes {
    /// Parses `ISTIO_KUBE_APP_PROBERS`.
    pub(super) fn read(text: &str, address: IpAddr, status_port: u16) -> Result<AppProbes> {
        if text.is_empty() {
            return Ok(AppProbes::default());
        }
        let probers: BTreeMap<String, Prober> =
            serde_json::from_str(text).with_context(|| format!("could not parse ISTIO_KUBE_APP_PROBERS {text:?}"))?;
        for (path, prober) in &probers {
            check(path, prober).with_context(|| format!("could not use probe {path} of ISTIO_KUBE_APP_PROBERS"))?;
        }
        Ok(AppProbes { probers, address: Some(address), status_port })
    }

    /// Performs the probe of this path.
    pub(super) async fn handle(&self, path: &str, headers: &HeaderMap) -> Response<StatusBody> {
        let (Some(prober), Some(address)) = (self.probers.get(path), self.address) else {
            return reply(StatusCode::BAD_REQUEST, format!("no probe is configured for {path}\n"));
        };
        // Kubernetes' default is 1 s.
        let time_limit = Duration::from_secs(prober.timeout_seconds.max(1));
        let result = timeout(time_limit, self.probe(prober, address, headers)).await;
        let result = result.with_context(|| format!("no response within {time_limit:?}")).flatten();
        result.unwrap_or_else(|error| {
            info!(path, "application probe failed: {error:#}");
            reply(StatusCode::INTERNAL_SERVER_ERROR, "")
        })
    }

    async fn probe(&self, prober: &Prober, address: IpAddr, headers: &HeaderMap) -> Result<Response<StatusBody>> {
        if let Some(get) = &prober.http_get {
            return self.http(get, address, headers).await;
        }
        if let Some(tcp) = &prober.tcp_socket {
            fetch::connect((address, tcp.port).into(), Some(source(address))).await?;
        }
        if let Some(grpc) = &prober.grpc {
            let service = grpc.service.as_deref().unwrap_or_default();
            grpc_health((address, grpc.port).into(), service, headers.get(USER_AGENT)).await?;
        }
        Ok(reply(StatusCode::OK, ""))
    }

    /// Follows redirects to the same host; a redirect to another host counts as success, as in kubelet.
    async fn http(&self, get: &HttpGet, address: IpAddr, headers: &HeaderMap) -> Result<Response<StatusBody>> {
        let to = SocketAddr::new(address, get.port);
        let mut path = format!("/{}", get.path.trim_start_matches('/'));
        for _ in 0..=MAX_REDIRECTS {
            let response = self.request(get, to, &path, headers).await?;
            if !response.status().is_redirection() {
                let status = response.status();
                let body = net::http::collect(response.into_body(), LIMIT).await.unwrap_or_default();
                return Ok(reply(status, body));
            }
            match next(&response, address) {
                Some(next) => path = next,
                None => return Ok(reply(StatusCode::OK, "")),
            }
        }
        bail!("more than {MAX_REDIRECTS} redirects")
    }

    async fn request(
        &self,
        get: &HttpGet,
        to: SocketAddr,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Response<Incoming>> {
        let mut request =
            Request::get(path).body(Empty::<Bytes>::new()).context("could not build the probe request")?;
        *request.headers_mut() = headers.clone();
        request.headers_mut().insert(HOST, self.host(headers, to)?);
        let stream = fetch::connect(to, Some(source(to.ip()))).await?;
        if get.scheme.eq_ignore_ascii_case("https") {
            return Ok(net::http::send(fetch::unverified_tls(stream, to.ip()).await?, request).await?);
        }
        Ok(net::http::send(stream, request).await?)
    }

    /// kubelet's Host header with the status port replaced by the application's.
    fn host(&self, headers: &HeaderMap, to: SocketAddr) -> Result<HeaderValue> {
        let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else {
            return Ok(HeaderValue::from_str(&to.to_string())?);
        };
        let host = match host.rsplit_once(':') {
            Some((name, port)) if port == self.status_port.to_string() => format!("{name}:{}", to.port()),
            _ => host.to_owned(),
        };
        Ok(HeaderValue::from_str(&host)?)
    }
}

fn check(path: &str, prober: &Prober) -> Result<()> {
    let parts: Vec<&str> = path.split('/').collect();
    let ["", "app-health" | "app-lifecycle", container, kind] = parts[..] else {
        bail!("expected /app-health/CONTAINER/KIND");
    };
    if container.is_empty() || !["livez", "readyz", "startupz", "prestopz", "poststartz"].contains(&kind) {
        bail!("expected /app-health/CONTAINER/(livez|readyz|startupz)");
    }
    let kinds = [prober.http_get.is_some(), prober.tcp_socket.is_some(), prober.grpc.is_some()];
    if kinds.iter().filter(|is_there| **is_there).count() != 1 {
        bail!("expected one of httpGet, tcpSocket and grpc");
    }
    Ok(())
}

/// iptables rules do not redirect connections from this address, so they reach the application directly.
pub(super) fn source(to: IpAddr) -> IpAddr {
    match to {
        IpAddr::V4(_) => Ipv4Addr::new(127, 0, 0, 6).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6).into(),
    }
}

/// The path of a redirect to the same host.
fn next(response: &Response<Incoming>, address: IpAddr) -> Option<String> {
    let location: Uri = response.headers().get(LOCATION)?.to_str().ok()?.parse().ok()?;
    let is_same = location.host().is_none_or(|host| host.trim_matches(['[', ']']).parse() == Ok(address));
    is_same.then(|| location.path_and_query().map_or("/".to_owned(), ToString::to_string))
}

fn reply(status: StatusCode, body: impl Into<Bytes>) -> Response<StatusBody> {
    let mut response = Response::new(StatusBody::text(body));
    *response.status_mut() = status;
    response
}

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, Message)]
struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, PartialEq, Message)]
struct HealthResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

const SERVING: i32 = 1;

/// Calls gRPC's health service; fails unless the service is serving.
pub(super) async fn grpc_health(to: SocketAddr, service: &str, agent: Option<&HeaderValue>) -> Result<()> {
    let message = HealthRequest { service: service.to_owned() }.encode_to_vec();
    let mut framed = BytesMut::from(&[0][..]);
    framed.extend_from_slice(&u32::try_from(message.len())?.to_be_bytes());
    framed.extend_from_slice(&message);
    let mut request = Request::post(format!("http://{to}/grpc.health.v1.Health/Check"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers");
    if let Some(agent) = agent {
        request = request.header(USER_AGENT, agent);
    }
    let stream = fetch::connect(to, Some(source(to.ip()))).await?;
    let answer = fetch::call(stream, request.body(Full::new(framed.freeze()))?).await?;
    let body = answer.get(5..).context("received no message")?;
    match HealthResponse::decode(body)?.status {
        SERVING => Ok(()),
        other => bail!("received health status {other}"),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::AppProbes;

    fn read(text: &str) -> Result<usize, String> {
        let probes = AppProbes::read(text, IpAddr::V4(Ipv4Addr::LOCALHOST), 15020);
        probes.map(|probes| probes.probers.len()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn probers_are_parsed_and_errors_name_the_probe() {
        assert_eq!(read(""), Ok(0));
        let good = r#"{"/app-health/a/livez":{"httpGet":{"path":"/l","port":80},"timeoutSeconds":3},
                       "/app-health/a/readyz":{"tcpSocket":{"port":81}},
                       "/app-lifecycle/a/prestopz":{"grpc":{"port":82,"service":"s"}}}"#;
        assert_eq!(read(good), Ok(3));
        for (bad, named) in [
            ("[", "ISTIO_KUBE_APP_PROBERS"),
            (r#"{"/app-health/a/b/livez":{"tcpSocket":{"port":1}}}"#, "/app-health/a/b/livez"),
            (r#"{"/app-health/a/ready":{"tcpSocket":{"port":1}}}"#, "livez|readyz"),
            (r#"{"/app-health/a/livez":{}}"#, "one of httpGet"),
            (r#"{"/app-health/a/livez":{"tcpSocket":{"port":1},"grpc":{"port":1}}}"#, "one of httpGet"),
            (r#"{"/app-health/a/livez":{"httpGet":{"port":"http"}}}"#, "invalid type"),
        ] {
            assert!(read(bad).is_err_and(|error| error.contains(named)), "{bad}: {:?}", read(bad));
        }
    }
}
