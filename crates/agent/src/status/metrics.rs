//! `/stats/prometheus`: merges the metrics of the agent, Envoy and the application. A source that fails is skipped and
//! counted.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, Request};
use http_body_util::Empty;
use hyper::body::Incoming;
use serde::Deserialize;
use tokio::time::timeout;
use tracing::warn;

use super::accept::{self, MetricsFormat};
use super::body::StatusBody;
use super::{StatusOptions, fetch};
use crate::metrics::Metrics;

/// Header with the scraper's timeout.
const TIMEOUT_HEADER: &str = "x-prometheus-scrape-timeout-seconds";

/// Timeout without that header.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of an application's metrics, which are buffered in memory.
const LIMIT: usize = 10 << 20;

/// Ports of Envoy and the agent: scraping them would duplicate metrics or loop.
const RESERVED: [u16; 9] = [15000, 15001, 15004, 15006, 15008, 15020, 15021, 15053, 15090];

/// The application's Prometheus annotations, as the injector passes them on.
#[derive(Debug, Default, Deserialize)]
struct ScrapeAnnotations {
    #[serde(default)]
    scrape: String,
    #[serde(default)]
    path: String,
    #[serde(default)]
    port: String,
    #[serde(default)]
    targets: Vec<AnnotatedTarget>,
}

#[derive(Debug, Default, Deserialize)]
struct AnnotatedTarget {
    #[serde(default)]
    port: String,
    #[serde(default)]
    path: String,
}

/// A metrics endpoint of the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScrapeTarget {
    port: u16,
    path: String,
}

/// Parses `ISTIO_PROMETHEUS_ANNOTATIONS`.
pub(super) fn targets(text: &str, status_port: u16) -> Result<Vec<ScrapeTarget>> {
    let annotations: ScrapeAnnotations =
        serde_json::from_str(text).with_context(|| format!("could not parse ISTIO_PROMETHEUS_ANNOTATIONS {text:?}"))?;
    if annotations.scrape == "false" {
        return Ok(Vec::new());
    }
    let or = |text: String, default: &str| if text.is_empty() { default.to_owned() } else { text };
    let mut listed = annotations.targets;
    if listed.is_empty() {
        listed.push(AnnotatedTarget { port: or(annotations.port, "80"), path: annotations.path });
    }
    let target = |annotated: AnnotatedTarget| {
        let port = annotated.port.parse::<u16>().ok().filter(|port| *port != 0);
        let port = port.with_context(|| format!("could not scrape port {:?}: not a port number", annotated.port))?;
        if port == status_port || RESERVED.contains(&port) {
            bail!("could not scrape port {port}: it belongs to Envoy or the agent");
        }
        Ok(ScrapeTarget { port, path: or(annotated.path, "/metrics") })
    };
    listed.into_iter().map(target).collect()
}

/// The merged metrics of all sources.
pub(super) async fn merged(
    options: &StatusOptions,
    metrics: &Metrics,
    targets: &[ScrapeTarget],
    query: Option<&str>,
    headers: &HeaderMap,
) -> (MetricsFormat, StatusBody) {
    metrics.scrapes.add();
    let mut page = StatusBody::default();
    let from_envoy = match options.envoy_metrics {
        None => None,
        Some(address) => {
            let path = query.map_or("/stats/prometheus".to_owned(), |query| format!("/stats/prometheus?{query}"));
            scrape(address, &path, headers, accept::ENVOY)
                .await
                .inspect_err(|error| {
                    warn!("could not scrape Envoy: {error:#}");
                    metrics.envoy_scrape_failures.add();
                })
                .ok()
        }
    };
    let (format, bodies) = applications(metrics, targets, headers).await;
    page.push(metrics.text());
    page.push(options.requests.as_ref().map(|requests| requests.text()).unwrap_or_default());
    if let Some((_, body)) = from_envoy {
        page.push_stream(body);
    }
    for body in bodies {
        let body = without_end(&body);
        page.push(body.clone());
        if body.last().is_some_and(|last| *last != b'\n') {
            page.push("\n");
        }
    }
    if format != MetricsFormat::Text {
        page.push("# EOF\n");
    }
    (format, page)
}

/// The metrics of all targets in order, and their common format; text if the formats differ.
async fn applications(metrics: &Metrics, targets: &[ScrapeTarget], headers: &HeaderMap) -> (MetricsFormat, Vec<Bytes>) {
    let mut scrapes = tokio::task::JoinSet::new();
    for (at, target) in targets.iter().cloned().enumerate() {
        let headers = headers.clone();
        scrapes.spawn(async move {
            let address = (IpAddr::V4(Ipv4Addr::LOCALHOST), target.port).into();
            let whole = async {
                let (format, body) = scrape(address, &target.path, &headers, accept::APPLICATION).await?;
                anyhow::Ok((format, net::http::collect(body, LIMIT).await?))
            };
            let whole = timeout(time_limit(&headers), whole).await.context("timed out").flatten();
            (at, whole.with_context(|| format!("could not scrape {address}{}", target.path)))
        });
    }
    let mut answers = std::collections::BTreeMap::new();
    while let Some(Ok((at, answer))) = scrapes.join_next().await {
        match answer {
            Ok(answer) => {
                answers.insert(at, answer);
            }
            Err(error) => {
                warn!("{error:#}");
                metrics.application_scrape_failures.add();
            }
        }
    }
    let mut formats = answers.values().map(|(format, _)| *format);
    let first = formats.next().unwrap_or(MetricsFormat::Text);
    let format = if formats.all(|format| format == first) { first } else { MetricsFormat::Text };
    (format, answers.into_values().map(|(_, body)| body).collect())
}

async fn scrape(to: SocketAddr, path: &str, headers: &HeaderMap, types: &[&str]) -> Result<(MetricsFormat, Incoming)> {
    let accepted = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let mut request = Request::get(path).header(HOST, to.to_string()).header(ACCEPT, accept::allowed(accepted, types));
    for name in [USER_AGENT.as_str(), TIMEOUT_HEADER] {
        if let Some(value) = headers.get(name) {
            request = request.header(name, value);
        }
    }
    let request = request.body(Empty::<Bytes>::new())?;
    let sent = async { anyhow::Ok(net::http::send(fetch::connect(to, None).await?, request).await?) };
    let response = timeout(time_limit(headers), sent).await.context("timed out")??;
    if !response.status().is_success() {
        bail!("received {}", response.status());
    }
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    Ok((MetricsFormat::of(kind), response.into_body()))
}

fn time_limit(headers: &HeaderMap) -> Duration {
    let seconds = headers.get(TIMEOUT_HEADER).and_then(|text| text.to_str().ok()?.parse::<f64>().ok());
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(DEFAULT_TIMEOUT)
}

/// Removes the OpenMetrics EOF marker, which must occur only once.
fn without_end(body: &Bytes) -> Bytes {
    let trimmed = body.trim_ascii_end();
    match trimmed.strip_suffix(b"# EOF") {
        Some(rest) => body.slice(..rest.len()),
        None => body.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Bytes, ScrapeTarget, targets, without_end};

    fn target(port: u16, path: &str) -> ScrapeTarget {
        ScrapeTarget { port, path: path.to_owned() }
    }

    #[test]
    fn annotations_become_targets() {
        let read = |text: &str| targets(text, 15020).map_err(|error| format!("{error:#}"));
        assert_eq!(read("{}"), Ok(vec![target(80, "/metrics")]));
        assert_eq!(read(r#"{"scrape":"true","port":"9090","path":"/m"}"#), Ok(vec![target(9090, "/m")]));
        assert_eq!(read(r#"{"scrape":"false","port":"9090"}"#), Ok(vec![]));
        assert_eq!(
            read(r#"{"targets":[{"port":"1"},{"port":"2","path":"/x"}]}"#),
            Ok(vec![target(1, "/metrics"), target(2, "/x")])
        );
        for (bad, named) in [
            (r#"{"port":"15020"}"#, "15020"),
            (r#"{"port":"015090"}"#, "15090"),
            (r#"{"port":"http"}"#, "http"),
            (r#"{"port":"0"}"#, "0"),
            ("{", "ISTIO_PROMETHEUS_ANNOTATIONS"),
        ] {
            assert!(read(bad).unwrap_err().contains(named), "{bad}: {:?}", read(bad));
        }
    }

    #[test]
    fn eof_marker_is_removed() {
        for (text, rest) in [("a 1\n# EOF\n", "a 1\n"), ("a 1\n# EOF", "a 1\n"), ("a 1\n", "a 1\n"), ("", "")] {
            assert_eq!(without_end(&Bytes::from(text)), rest);
        }
    }
}
