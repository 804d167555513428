//! The status port as used by kubelet, Prometheus and operators.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use agent::metrics::Metrics;
use agent::process::lifecycle::{LifecycleRequest, LifecycleSender};
use agent::status::{StatusOptions, StatusServer};
use api::nds::{NameInfo, NameTable};
use serde_json::json;
use testkit::backend::TcpBackend;
use testkit::client::{self, Reply};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::stub_server::{Pages, StubServer};

struct Status {
    address: SocketAddr,
    requests: watch::Receiver<LifecycleRequest>,
    metrics: Arc<Metrics>,
    _stop: DropGuard,
}

fn options() -> StatusOptions {
    StatusOptions {
        address: (Ipv4Addr::LOCALHOST, 0).into(),
        admin: None,
        envoy_metrics: None,
        application: IpAddr::V4(Ipv4Addr::LOCALHOST),
        probers: String::new(),
        annotations: None,
        local_metrics: false,
        names: None,
        control_plane_names: Vec::new(),
        late_certificates: None,
        requests: None,
        certificate_failure: watch::channel(None).1,
        started: Instant::now(),
    }
}

impl Status {
    async fn start(options: StatusOptions) -> Status {
        let lifecycle = LifecycleSender::default();
        let requests = lifecycle.subscribe();
        let metrics = Arc::new(Metrics::default());
        let server = StatusServer::bind(options, Arc::clone(&metrics), lifecycle).await.unwrap();
        let (address, stop) = (server.address().unwrap(), CancellationToken::new());
        tokio::spawn(server.serve(stop.clone()));
        Status { address, requests, metrics, _stop: stop.drop_guard() }
    }

    async fn get(&self, path: &str) -> Reply {
        self.get_with(path, &[]).await
    }

    async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        client::get_with(self.address, &self.address.to_string(), path, headers).await.unwrap()
    }

    async fn post(&self, path: &str) -> Reply {
        let request = http::Request::post(path).header("host", "localhost").body(String::new()).unwrap();
        client::send(self.address, request).await.unwrap()
    }
}

const CONFIGURED: &str = "cluster_manager.cds.update_success: 1\nlistener_manager.lds.update_success: 1\n\
                          listener_manager.workers_started: 1\nserver.state: 0\n";

#[tokio::test]
async fn readiness_is_checked_again_for_a_new_envoy() {
    let envoy = StubServer::start(Pages::new()).await;
    let status = Status::start(StatusOptions { admin: Some(envoy.address), ..options() }).await;
    let ready = async || status.get("/healthz/ready").await.status.as_u16();
    assert_eq!(ready().await, 503);
    envoy.put("/ready", 200, "LIVE\n");
    envoy.put("/stats", 200, "server.state: 0\n");
    let reply = status.get("/healthz/ready").await;
    assert!(reply.status == 503 && reply.body.contains("no configuration"), "{reply:?}");
    envoy.put("/stats", 200, CONFIGURED);
    assert_eq!(ready().await, 200);
    assert!(status.metrics.startup_seconds.get() > 0.0);
    // The stats of a live Envoy are not checked again; those of a new one are.
    envoy.put("/stats", 200, "server.state: 0\n");
    assert_eq!(ready().await, 200);
    envoy.put("/ready", 503, "PRE_INITIALIZING\n");
    assert_eq!(ready().await, 503);
    envoy.put("/ready", 200, "LIVE\n");
    assert_eq!(ready().await, 503);
}

#[tokio::test]
async fn captured_dns_is_not_ready_without_a_name_table() {
    let (names, latest) = watch::channel(None);
    let status = Status::start(StatusOptions { names: Some(latest), ..options() }).await;
    assert_eq!(status.get("/healthz/ready").await.status, 503);
    assert_eq!(status.get("/debug/ndsz").await.status, 404);
    let info = NameInfo { ips: vec!["10.0.0.1".into()], registry: "External".into(), ..NameInfo::default() };
    names.send_replace(Some(Arc::new(NameTable { table: [("a.example.com".to_owned(), info)].into() })));
    assert_eq!(status.get("/healthz/ready").await.status, 200);
    let shown = status.get("/debug/ndsz").await.json();
    assert_eq!(shown, json!({"table": {"a.example.com": {"ips": ["10.0.0.1"], "registry": "External"}}}));
}

#[tokio::test]
async fn metrics_are_merged_and_one_source_may_fail() {
    let envoy = StubServer::start(Pages::new()).await;
    envoy.put("/stats/prometheus", 200, "envoy_up 1\n");
    let application = StubServer::start(Pages::new()).await;
    let open_metrics = "application/openmetrics-text; version=1.0.0; charset=utf-8".to_owned();
    let page = (200, vec![("content-type", open_metrics.clone())], "app_up 1\n# EOF\n".to_owned());
    application.pages.lock().unwrap().insert("/own", page);
    let annotations = json!({"port": application.address.port().to_string(), "path": "/own"}).to_string();
    let status = Status::start(StatusOptions {
        envoy_metrics: Some(envoy.address),
        annotations: Some(annotations),
        ..options()
    })
    .await;
    let accept = [("accept", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")];
    let merged = status.get_with("/stats/prometheus?usedonly", &accept).await;
    assert_eq!(merged.header("content-type"), open_metrics);
    let (agent, rest) = merged.body.split_once("envoy_up 1\n").expect("Envoy's metrics");
    assert!(agent.contains("istio_agent_scrapes_total 1"));
    assert_eq!(rest, "app_up 1\n# EOF\n");
    assert_eq!(envoy.requests.lock().unwrap()[0].0, "/stats/prometheus?usedonly");
    let accepted = envoy.requests.lock().unwrap()[0].1["accept"].clone();
    assert_eq!(accepted, "text/plain;version=0.0.4;q=0.1");
    // The application fails: the other metrics are still served.
    application.put("/own", 500, "");
    let merged = status.get("/metrics").await;
    assert!(merged.body.contains("envoy_up 1") && !merged.body.contains("# EOF"), "{}", merged.body);
    assert_eq!(merged.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    assert_eq!(status.metrics.application_scrape_failures.get(), 1);
}

#[tokio::test]
async fn probes_behave_like_kubelets() {
    let application = StubServer::start(Pages::new()).await;
    application.put("/live", 200, "fine");
    let port = application.address.port();
    let redirect = |to: &str| (302, vec![("location", to.to_owned())], String::new());
    application.pages.lock().unwrap().insert("/moved", redirect("/live"));
    application.pages.lock().unwrap().insert("/away", redirect("http://elsewhere.example.com/"));
    application.pages.lock().unwrap().insert("/circle", redirect("/circle"));
    let tcp = TcpBackend::start("hello").await;
    let closed = testkit::ports::free();
    let get = |path: &str| json!({"httpGet": {"path": path, "port": port}});
    let probers = json!({
        "/app-health/a/livez": get("live"),
        "/app-health/a/readyz": get("/missing"),
        "/app-health/a/startupz": get("/moved"),
        "/app-health/b/livez": get("/away"),
        "/app-health/b/readyz": get("/circle"),
        "/app-health/c/livez": {"tcpSocket": {"port": tcp.port()}},
        "/app-health/c/readyz": {"tcpSocket": {"port": closed}},
        "/app-health/d/livez": {"grpc": {"port": closed}},
    });
    let status = Status::start(StatusOptions { probers: probers.to_string(), ..options() }).await;
    for (path, expected) in [
        ("/app-health/a/livez", 200),
        ("/app-health/a/readyz", 404),
        ("/app-health/a/startupz", 200),
        ("/app-health/b/livez", 200),
        ("/app-health/b/readyz", 500),
        ("/app-health/c/livez", 200),
        ("/app-health/c/readyz", 500),
        ("/app-health/d/livez", 500),
        ("/app-health/unknown/livez", 400),
    ] {
        assert_eq!(status.get(path).await.status.as_u16(), expected, "{path}");
    }
    assert_eq!(status.get("/app-health/a/livez").await.body, "fine");
    let requests = application.requests.lock().unwrap().clone();
    assert_eq!(requests[0].1["host"], format!("127.0.0.1:{port}"), "the status port must not be sent");
}

#[tokio::test]
async fn grpc_probe_checks_health() {
    use tonic::transport::Server;
    let (reporter, service) = tonic_health::server::health_reporter();
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    reporter.set_service_status("up", tonic_health::ServingStatus::Serving).await;
    reporter.set_service_status("down", tonic_health::ServingStatus::NotServing).await;
    let prober = |service: &str| json!({"grpc": {"port": port, "service": service}, "timeoutSeconds": 10});
    let probers = json!({
        "/app-health/up/livez": prober("up"),
        "/app-health/down/livez": prober("down"),
        "/app-health/none/livez": prober("none"),
    });
    let status = Status::start(StatusOptions { probers: probers.to_string(), ..options() }).await;
    for (path, expected) in
        [("/app-health/up/livez", 200), ("/app-health/down/livez", 500), ("/app-health/none/livez", 500)]
    {
        assert_eq!(status.get(path).await.status.as_u16(), expected, "{path}");
    }
}

#[tokio::test]
async fn commands_require_post() {
    let status = Status::start(options()).await;
    assert_eq!(status.get("/quitquitquit").await.status, 405);
    assert_eq!(*status.requests.borrow(), LifecycleRequest::Run);
    assert_eq!(status.post("/drain").await.body, "OK");
    assert_eq!(*status.requests.borrow(), LifecycleRequest::Drain);
    assert_eq!(status.post("/quitquitquit").await.status, 200);
    assert_eq!(*status.requests.borrow(), LifecycleRequest::Quit);
    assert_eq!(status.get("/nothing").await.status, 404);
}

/// Skipped on a machine without a non-loopback address.
#[tokio::test]
async fn commands_are_local_only() {
    let outside = std::net::UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    let Some(own) = outside.ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback()) else { return };
    let mut status =
        Status::start(StatusOptions { address: (Ipv4Addr::UNSPECIFIED, 0).into(), local_metrics: true, ..options() })
            .await;
    status.address.set_ip(own);
    assert_eq!(status.post("/quitquitquit").await.status, 403);
    assert_eq!(status.get("/debug/ndsz").await.status, 403);
    assert_eq!(status.get("/metrics").await.status, 403);
    assert_eq!(*status.requests.borrow(), LifecycleRequest::Run);
}
