//! The agent's status port: readiness, merged metrics, application probes, and local commands to drain or quit.

mod accept;
mod body;
mod fetch;
pub mod health;
mod local_request;
mod metrics;
mod probes;
mod readiness;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Map, Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::body::StatusBody;
use self::local_request::is_local;
use self::metrics::{ScrapeTarget, merged, targets};
use self::probes::AppProbes;
use self::readiness::ReadinessCheck;
use crate::dns::NameTableReceiver;
use crate::late_certificates::LateCertificates;
use crate::metrics::Metrics;
use crate::process::lifecycle::{LifecycleRequest, LifecycleSender};
use crate::requests::RequestSeries;

/// What a proxy without a source of certificates means; on the readiness page and in the log.
pub(crate) const NO_CERTIFICATES_NOTE: &str = "traffic is plain text, and listeners for which a policy demands mutual TLS are \
                                        closed; mount certificates (with --xdsRelay=false restart too), or give the \
                                        agent a TLS port of the control plane";

/// Names of the workload's certificate and of its roots.
const OWN_SECRETS: [&str; 2] = ["default", "ROOTCA"];

/// Options of the status server.
#[derive(Debug)]
pub struct StatusOptions {
    pub address: SocketAddr,
    /// Envoy's admin port; `None` without Envoy.
    pub admin: Option<SocketAddr>,
    /// Names of which the control plane's certificate must have one.
    pub control_plane_names: Vec<String>,
    /// Envoy's metrics endpoint.
    pub envoy_metrics: Option<SocketAddr>,
    /// Address of the application.
    pub application: IpAddr,
    /// `ISTIO_KUBE_APP_PROBERS`, or empty.
    pub probers: String,
    /// `ISTIO_PROMETHEUS_ANNOTATIONS`; only for sidecars, because a gateway's status port may be public.
    pub annotations: Option<String>,
    /// Serve metrics to local requests only.
    pub local_metrics: bool,
    /// The name table, if DNS is captured: the proxy is not ready without it.
    pub names: Option<NameTableReceiver>,
    /// Set if the proxy started without a source of certificates, which the readiness page says until files are found.
    pub late_certificates: Option<LateCertificates>,
    /// Metrics made from Envoy's access log.
    pub requests: Option<Arc<RequestSeries>>,
    /// Why the workload has no certificates, if the last attempt to get them failed.
    pub certificate_failure: watch::Receiver<Option<String>>,
    /// Start time of the agent.
    pub started: Instant,
}

/// The listening status server.
pub struct StatusServer {
    listener: TcpListener,
    shared: Arc<StatusState>,
}

struct StatusState {
    options: StatusOptions,
    envoy: Option<ReadinessCheck>,
    targets: Vec<ScrapeTarget>,
    probes: AppProbes,
    was_ready: AtomicBool,
    metrics: Arc<Metrics>,
    lifecycle: LifecycleSender,
}

impl StatusServer {
    /// Opens the port. Fails also if probers or annotations cannot be parsed.
    pub async fn bind(
        options: StatusOptions,
        metrics: Arc<Metrics>,
        lifecycle: LifecycleSender,
    ) -> Result<StatusServer> {
        let listener = TcpListener::bind(options.address).await;
        let listener = listener.with_context(|| format!("could not listen on status port {}", options.address))?;
        let port = listener.local_addr()?.port();
        info!(port, "serving status");
        let shared = StatusState {
            envoy: options.admin.map(|admin| ReadinessCheck::new(admin, options.control_plane_names.clone())),
            targets: options.annotations.as_deref().map_or(Ok(Vec::new()), |text| targets(text, port))?,
            probes: AppProbes::read(&options.probers, options.application, port)?,
            was_ready: AtomicBool::new(false),
            options,
            metrics,
            lifecycle,
        };
        Ok(StatusServer { listener, shared: Arc::new(shared) })
    }

    /// The bound address.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until cancelled.
    pub async fn serve(self, stop: CancellationToken) {
        let mut connections = JoinSet::new();
        while let Some(accepted) = stop.run_until_cancelled(self.listener.accept()).await {
            while connections.try_join_next().is_some() {}
            match accepted {
                Ok((stream, peer)) => {
                    connections.spawn(connection(stream, peer.ip().to_canonical(), Arc::clone(&self.shared)));
                }
                Err(error) => {
                    debug!(%error, "could not accept a status connection");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    }
}

async fn connection(stream: TcpStream, peer: IpAddr, shared: Arc<StatusState>) {
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(shared.handle(request, peer).await) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    let served = builder.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service).await;
    if let Err(error) = served {
        debug!(%error, "status connection ended");
    }
}

impl StatusState {
    async fn handle(&self, request: Request<Incoming>, peer: IpAddr) -> Response<StatusBody> {
        let path = request.uri().path();
        let foreign = !is_local(peer, request.uri(), request.headers());
        match path {
            "/healthz/ready" => self.ready().await,
            "/metrics" | "/stats/prometheus" if foreign && self.options.local_metrics => forbidden(),
            "/metrics" | "/stats/prometheus" => {
                let (query, headers) = (request.uri().query(), request.headers());
                let (format, page) = merged(&self.options, &self.metrics, &self.targets, query, headers).await;
                typed(format.content_type(), page)
            }
            "/quitquitquit" | "/drain" | "/debug/ndsz" if foreign => forbidden(),
            "/quitquitquit" => self.command(request.method(), LifecycleRequest::Quit),
            "/drain" => self.command(request.method(), LifecycleRequest::Drain),
            "/debug/ndsz" => self.names(),
            _ if path.starts_with("/app-health/") || path.starts_with("/app-lifecycle/") => {
                self.probes.handle(path, request.headers()).await
            }
            _ => plain(StatusCode::NOT_FOUND, "no such page\n"),
        }
    }

    async fn ready(&self) -> Response<StatusBody> {
        let checked = self.check().await;
        let was_ready = self.was_ready.swap(checked.is_ok(), Ordering::Relaxed);
        match checked {
            Ok(()) => {
                if !was_ready {
                    info!("Envoy is ready");
                    if self.metrics.startup_seconds.get() == 0.0 {
                        self.metrics.startup_seconds.set(self.options.started.elapsed().as_secs_f64());
                    }
                }
                plain(StatusCode::OK, self.note())
            }
            Err(error) => {
                warn!("Envoy is not ready: {error:#}");
                plain(StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}\n{}", self.note()))
            }
        }
    }

    /// The last line of the readiness page.
    fn note(&self) -> String {
        match &self.options.late_certificates {
            Some(late) if !late.are_found() => format!("no certificate files and no CA: {NO_CERTIFICATES_NOTE}\n"),
            _ => String::new(),
        }
    }

    async fn check(&self) -> Result<()> {
        if let Some(envoy) = &self.envoy
            && let Err(error) = envoy.check().await
        {
            return Err(self.waiting(envoy, error).await);
        }
        if self.options.names.as_ref().is_some_and(|names| names.borrow().is_none()) {
            bail!("no name table received yet (DNS is captured)");
        }
        Ok(())
    }

    /// Adds the secrets that an Envoy waits for, and why it does not get them.
    async fn waiting(&self, envoy: &ReadinessCheck, error: anyhow::Error) -> anyhow::Error {
        let secrets = envoy.missing_secrets().await;
        if secrets.is_empty() {
            return error;
        }
        // The others are served by the control plane, or read from files.
        let is_own = secrets.iter().any(|name| OWN_SECRETS.contains(&name.as_str()));
        let reason = self.options.certificate_failure.borrow().clone().filter(|_| is_own);
        let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
        error.context(format!("Envoy waits for the secrets {}{reason}", secrets.join(", ")))
    }

    fn command(&self, method: &Method, command: LifecycleRequest) -> Response<StatusBody> {
        if method != Method::POST {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n");
        }
        info!(?command, "received a command on the status port");
        self.lifecycle.send(command);
        plain(StatusCode::OK, "OK")
    }

    /// `/debug/ndsz`: the name table as JSON.
    fn names(&self) -> Response<StatusBody> {
        let newest = self.options.names.as_ref().and_then(|names| names.borrow().clone());
        let Some(table) = newest else {
            let mut response = typed("application/json", StatusBody::text("{}"));
            *response.status_mut() = StatusCode::NOT_FOUND;
            return response;
        };
        let entry = |info: &api::nds::NameInfo| {
            let mut entry = Map::new();
            let texts = [("registry", &info.registry), ("shortname", &info.shortname), ("namespace", &info.namespace)];
            if !info.ips.is_empty() {
                entry.insert("ips".to_owned(), json!(info.ips));
            }
            entry.extend(texts.into_iter().filter(|(_, t)| !t.is_empty()).map(|(k, t)| (k.to_owned(), json!(t))));
            Value::Object(entry)
        };
        let names: Map<String, Value> = table.table.iter().map(|(host, info)| (host.clone(), entry(info))).collect();
        typed("application/json", StatusBody::text(json!({"table": names}).to_string()))
    }
}

fn plain(status: StatusCode, text: impl Into<bytes::Bytes>) -> Response<StatusBody> {
    let mut response = Response::new(StatusBody::text(text));
    *response.status_mut() = status;
    response
}

fn typed(kind: &'static str, page: StatusBody) -> Response<StatusBody> {
    let mut response = Response::new(page);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn forbidden() -> Response<StatusBody> {
    plain(StatusCode::FORBIDDEN, "Only local requests to localhost are allowed, and none from web pages\n")
}
