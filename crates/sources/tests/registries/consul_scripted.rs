//! Responses that a healthy Consul never gives: indexes that go backwards, no leader, stale or broken responses.

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use serde_json::{Value, json};
use sources::health::SourceState;
use sources::registry::adapter::SourcePlace;
use sources::registry::consul::{ConsulOptions, ConsulRegistry};
use sources::registry::diff::MassLossGuard;
use sources::registry::shared_options::GoDuration;
use testkit::scripted::{ScriptedRequest, ScriptedServer};
use tokio::sync::watch;

use crate::conformance::place;
use crate::consul::{adapter, options};
use crate::follower::Follower;

const HOST: &str = "web.service.consul";

/// The state of the fake server.
#[derive(Clone, Debug, Default)]
struct CatalogState {
    index: u64,
    /// Last octets of the addresses of service `web`; without any the service does not exist.
    web: Vec<u8>,
    fault: Fault,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fault {
    #[default]
    None,
    Status(u16),
    NoLeader,
    NotJson,
    /// The ACL token may read nothing.
    Filtered,
    /// A follower that lost contact with the leader long ago and lacks an instance.
    Old,
}

struct FakeConsul {
    server: ScriptedServer,
    catalog: Arc<watch::Sender<CatalogState>>,
}

impl FakeConsul {
    async fn start(index: u64, web: &[u8]) -> FakeConsul {
        let catalog = Arc::new(watch::channel(CatalogState { index, web: web.to_vec(), fault: Fault::None }).0);
        let shown = catalog.clone();
        let server = ScriptedServer::start(move |request| respond(request, shown.subscribe())).await;
        FakeConsul { server, catalog }
    }

    fn show(&self, index: u64, web: &[u8], fault: Fault) {
        self.catalog.send_replace(CatalogState { index, web: web.to_vec(), fault });
    }

    fn source(&self) -> ConsulRegistry {
        adapter(self.options())
    }

    fn options(&self) -> ConsulOptions {
        options(vec![self.server.url()])
    }
}

async fn respond(request: ScriptedRequest, mut catalog: watch::Receiver<CatalogState>) -> Response<String> {
    let wanted: u64 = request.parameter("index").and_then(|i| i.parse().ok()).unwrap_or(0);
    let waits = |p: &CatalogState| wanted > 0 && p.index == wanted && p.fault == Fault::None;
    // The test may end during a blocking query.
    let _ = catalog.wait_for(|p| !waits(p)).await;
    let mut now = catalog.borrow().clone();
    let mut response = Response::builder().header("x-consul-index", now.index);
    match now.fault {
        Fault::None => {}
        Fault::Status(status) => response = response.status(status),
        Fault::NoLeader => response = response.header("x-consul-knownleader", "false"),
        Fault::NotJson => return response.body("<html>".to_owned()).expect("a response"),
        Fault::Filtered => response = response.header("x-consul-results-filtered-by-acls", "true"),
        Fault::Old if request.parameter("stale").is_some() => {
            response = response.header("x-consul-lastcontact", "60000").header("x-consul-knownleader", "true");
        }
        Fault::Old => now.web.push(9),
    }
    if now.fault != Fault::None && now.fault != Fault::Old {
        now.web.clear();
    }
    let body = match request.path.as_str() {
        "/v1/catalog/services" if now.web.is_empty() => json!({}),
        "/v1/catalog/services" => json!({"web": []}),
        "/v1/health/service/web" => now.web.iter().map(|n| instance(*n)).collect(),
        other => panic!("unexpected request for {other}"),
    };
    response.body(body.to_string()).expect("a response")
}

fn instance(number: u8) -> Value {
    json!({
        "Node": {"Node": "n", "Address": "10.9.9.9", "Datacenter": "dc1"},
        "Service": {"ID": number.to_string(), "Service": "web", "Address": format!("10.0.0.{number}"), "Port": 80},
        "Checks": [],
    })
}

#[tokio::test]
async fn an_index_that_goes_backwards_restarts_the_watch_and_loses_nothing() {
    let fake = FakeConsul::start(100, &[1]).await;
    let mut seen = Follower::synced(fake.source()).await;
    // A cluster restored from a snapshot has lower indexes.
    fake.show(5, &[1, 2], Fault::None);
    seen.until("the restored instance", |f| f.serving(HOST).len() == 2).await;
    fake.show(6, &[1, 2, 3], Fault::None);
    seen.until("a change after the restore", |f| f.serving(HOST).len() == 3).await;
    assert_eq!(seen.lost, 0);
    let waited: Vec<u64> =
        fake.server.requests().iter().filter_map(|request| request.parameter("index")?.parse().ok()).collect();
    assert!(waited.contains(&100) && waited.contains(&5), "{waited:?}");
    let after = waited.iter().rposition(|i| *i == 5).unwrap();
    assert!(!waited[after..].contains(&100), "{waited:?}");
}

#[tokio::test]
async fn failures_keep_services_and_an_empty_catalog_removes_them() {
    let fake = FakeConsul::start(7, &[1, 2]).await;
    let mut seen = Follower::synced(fake.source()).await;
    let faults = [Fault::Status(500), Fault::Status(403), Fault::NoLeader, Fault::NotJson, Fault::Filtered];
    for (fault, index) in faults.into_iter().zip(10..) {
        fake.show(index * 10, &[1, 2], fault);
        seen.until_state(&format!("stale by {fault:?}"), |r| matches!(r.state, SourceState::Stale { .. })).await;
        assert_eq!((seen.serving(HOST).len(), seen.lost), (2, 0), "{fault:?}");
        fake.show(index * 10 + 1, &[1, 2], Fault::None);
        seen.until_state(&format!("live after {fault:?}"), |r| r.state == SourceState::Live).await;
    }
    assert_eq!(seen.lost, 0);
    fake.show(1000, &[], Fault::None);
    seen.until("a service that is gone", |f| !f.has_service(HOST)).await;
}

#[tokio::test]
async fn a_response_that_is_too_stale_is_replaced_by_the_leaders() {
    let fake = FakeConsul::start(7, &[1]).await;
    let mut seen = Follower::synced(fake.source()).await;
    fake.show(8, &[1], Fault::Old);
    // Only the leader has instance 9.
    seen.until("the leader's response", |f| f.serving(HOST) == ["10.0.0.1", "10.0.0.9"]).await;
}

#[tokio::test]
async fn another_agent_is_used_after_a_failure() {
    let [one, other] = [FakeConsul::start(7, &[1]).await, FakeConsul::start(3, &[1, 2]).await];
    let options = options(vec![one.server.url(), other.server.url()]);
    let mut seen = Follower::synced(adapter(options)).await;
    assert_eq!((seen.serving(HOST).len(), other.server.requests().len()), (1, 0));
    drop(one);
    seen.until("the other agent's response", |f| f.serving(HOST).len() == 2).await;
    assert_eq!((seen.lost, seen.report().state), (0, SourceState::Live));
}

#[tokio::test]
async fn the_loss_of_most_endpoints_is_held_back() {
    let many: Vec<u8> = (1..=20).collect();
    let fake = FakeConsul::start(7, &many).await;
    let guard = MassLossGuard { lost_percent: 90, at_least: 10, hold_for: Duration::from_secs(1) };
    let source = ConsulRegistry::new(fake.options(), SourcePlace { guard, ..place("Consul") });
    let mut seen = Follower::synced(source).await;
    fake.show(8, &[], Fault::None);
    seen.until("the problem", |f| f.has_problem(&["20 of 20 endpoints vanished at once"])).await;
    assert_eq!((seen.serving(HOST).len(), seen.lost), (20, 0));
    seen.until("a loss that lasts", |f| !f.has_service(HOST)).await;
    assert!(!seen.has_problem(&["vanished"]));
}

#[tokio::test]
async fn options_reach_the_server() {
    let fake = FakeConsul::start(7, &[1]).await;
    let options = ConsulOptions {
        datacenter: "dc 2".into(),
        consul_namespace: "team".into(),
        partition: "p".into(),
        filter: "Service.Port == 80".into(),
        stale: false,
        wait: GoDuration(Duration::from_secs(60)),
        ..fake.options()
    };
    let _seen = Follower::synced(adapter(options)).await;
    testkit::wait::until("a blocking query", async || {
        let request = fake.server.requests();
        let mut web_requests = request.iter().rev().filter(|a| a.path == "/v1/health/service/web");
        let waiting = web_requests.find(|a| a.parameter("index").is_some()).ok_or("none yet".to_owned())?.query.clone();
        let expected = "default&dc=dc%202&ns=team&partition=p&index=7&wait=60s&filter=Service.Port%20%3D%3D%2080";
        if waiting == expected { Ok(()) } else { Err(waiting) }
    })
    .await;
}

/// The state of a fake server for catalog-wide watches: index, instances of `web` on the node, and those of the health
/// endpoint.
type Lists = (u64, Vec<u8>, Vec<u8>);

async fn respond_to_lists(request: ScriptedRequest, mut lists: watch::Receiver<Lists>) -> Response<String> {
    let wanted: u64 = request.parameter("index").and_then(|i| i.parse().ok()).unwrap_or(0);
    // The test may end during a blocking query. Checks never change here.
    let _ = lists.wait_for(|(index, ..)| wanted == 0 || *index != wanted && !request.path.contains("state")).await;
    let (index, on_node, healthy) = lists.borrow().clone();
    let listed = |n: &u8| json!({"ID": n.to_string(), "Service": "web", "ModifyIndex": n});
    let body = match request.path.as_str() {
        "/v1/catalog/services" => json!({"web": []}),
        "/v1/health/state/any" => json!([]),
        "/v1/catalog/nodes" => json!([{"Node": "n"}]),
        "/v1/catalog/node-services/n" => json!({"Services": on_node.iter().map(listed).collect::<Value>()}),
        "/v1/health/service/web" => healthy.iter().map(|n| instance(*n)).collect(),
        other => panic!("unexpected request for {other}"),
    };
    Response::builder().header("x-consul-index", index).body(body.to_string()).expect("a response")
}

#[tokio::test]
async fn an_instance_registered_and_removed_between_two_sweeps_is_not_kept() {
    let (show, shown) = watch::channel::<Lists>((7, vec![1], vec![1, 2]));
    let server = ScriptedServer::start(move |request| respond_to_lists(request, shown.clone())).await;
    let mut seen = Follower::synced(adapter(ConsulOptions { watches: 0, ..options(vec![server.url()]) })).await;
    assert_eq!(seen.serving(HOST), ["10.0.0.1", "10.0.0.2"]);
    show.send_replace((8, vec![1], vec![1]));
    seen.until("the removal", |f| f.serving(HOST) == ["10.0.0.1"]).await;
}

#[tokio::test]
async fn hole_13_responses_slower_than_interval_and_timeout_are_read() {
    let shown = watch::channel(CatalogState { index: 7, web: vec![1, 2], fault: Fault::None }).1;
    let server = ScriptedServer::start(move |request| {
        let shown = shown.clone();
        async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            respond(request, shown).await
        }
    })
    .await;
    let period = |millis| GoDuration(Duration::from_millis(millis));
    let options = ConsulOptions { interval: period(10), timeout: period(100), ..options(vec![server.url()]) };
    let started = std::time::Instant::now();
    let seen = Follower::synced(adapter(options)).await;
    assert_eq!(seen.serving(HOST).len(), 2);
    eprintln!("in sync after {:?} and {} requests", started.elapsed(), server.requests().len());
}

/// Twenty services, each with this text as the response for its instances.
async fn twenty_services(request: ScriptedRequest, text: String) -> Response<String> {
    let names: serde_json::Map<String, Value> = (0..20).map(|n| (format!("web-{n}"), json!([]))).collect();
    let body = if request.path == "/v1/catalog/services" { Value::Object(names).to_string() } else { text };
    Response::builder().header("x-consul-index", 7).body(body).expect("a response")
}

/// Waits until the last failure of a registry with a budget of 4 MiB contains this text.
async fn assert_failure_contains(server: &ScriptedServer, text: &str) {
    let options = ConsulOptions { max_bytes: 4 << 20, ..options(vec![server.url()]) };
    let mut seen = Follower::new(adapter(options));
    seen.until_state(text, |r| r.last_failure.as_ref().is_some_and(|failure| failure.message.contains(text))).await;
    assert_eq!(seen.synced, 0, "a registry that was never read is not in sync");
}

#[tokio::test]
async fn hole_11_an_endless_response_is_aborted_and_reported() {
    let server =
        ScriptedServer::start_endless("/v1/health", |request| twenty_services(request, "[[[[[[[[".to_owned())).await;
    assert_failure_contains(&server, "longer than 1048576 bytes").await;
}

#[tokio::test]
async fn hole_11_responses_that_are_too_long_together_are_aborted_and_reported() {
    // Each is below the limit of one response; since none ends, all are in memory at once.
    let text = || "[".repeat(900 << 10);
    let server = ScriptedServer::start_stalled("/v1/health", move |request| twenty_services(request, text())).await;
    assert_failure_contains(&server, "all responses together are longer than 4194304").await;
}

#[tokio::test]
async fn hole_11_small_objects_that_decode_to_large_values_are_rejected() {
    let server = ScriptedServer::start(|request| async move {
        let many = format!("[{}{{}}]", "{},".repeat(100_000));
        let body = if request.path == "/v1/catalog/services" { json!({"web": []}).to_string() } else { many };
        Response::builder().header("x-consul-index", 7).body(body).expect("a response")
    })
    .await;
    let mut seen = Follower::new(adapter(ConsulOptions { max_bytes: 4 << 20, ..options(vec![server.url()]) }));
    seen.until_state("the reason", |r| {
        r.last_failure.as_ref().is_some_and(|failure| failure.message.contains("need too much memory"))
    })
    .await;
}
