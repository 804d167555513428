//! Consul's answers that a healthy server never gives: indexes that go backwards, no leader, old or broken answers.

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use serde_json::{Value, json};
use sources::health::SourceState;
use sources::registry::config::GoDuration;
use sources::registry::consul::{ConsulOptions, ConsulRegistry};
use sources::registry::diff::MassLossGuard;
use testkit::scripted::{ScriptedRequest, ScriptedServer};
use tokio::sync::watch;

use crate::consul::{adapter, options};
use crate::follower::Follower;

const HOST: &str = "web.service.consul";

/// What the server would say.
#[derive(Clone, Debug, Default)]
struct Picture {
    index: u64,
    /// Last parts of the addresses of service `web`; the service is gone when there are none.
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
    /// Everything is hidden from the token.
    Filtered,
    /// A server that lost contact long ago, and knows less than the leader.
    Old,
}

struct Fake {
    server: ScriptedServer,
    picture: Arc<watch::Sender<Picture>>,
}

impl Fake {
    async fn start(index: u64, web: &[u8]) -> Fake {
        let picture = Arc::new(watch::channel(Picture { index, web: web.to_vec(), fault: Fault::None }).0);
        let shown = picture.clone();
        let server = ScriptedServer::start(move |asked| answer(asked, shown.subscribe())).await;
        Fake { server, picture }
    }

    fn show(&self, index: u64, web: &[u8], fault: Fault) {
        self.picture.send_replace(Picture { index, web: web.to_vec(), fault });
    }

    fn source(&self) -> ConsulRegistry {
        adapter(self.options())
    }

    fn options(&self) -> ConsulOptions {
        options(vec![self.server.url()])
    }
}

async fn answer(asked: ScriptedRequest, mut picture: watch::Receiver<Picture>) -> Response<String> {
    let wanted: u64 = asked.parameter("index").and_then(|i| i.parse().ok()).unwrap_or(0);
    let waits = |p: &Picture| wanted > 0 && p.index == wanted && p.fault == Fault::None;
    // The test may end while a question waits.
    let _ = picture.wait_for(|p| !waits(p)).await;
    let mut now = picture.borrow().clone();
    let mut response = Response::builder().header("x-consul-index", now.index);
    match now.fault {
        Fault::None => {}
        Fault::Status(status) => response = response.status(status),
        Fault::NoLeader => response = response.header("x-consul-knownleader", "false"),
        Fault::NotJson => return response.body("<html>".to_owned()).expect("a response"),
        Fault::Filtered => response = response.header("x-consul-results-filtered-by-acls", "true"),
        Fault::Old if asked.parameter("stale").is_some() => {
            response = response.header("x-consul-lastcontact", "60000").header("x-consul-knownleader", "true");
        }
        Fault::Old => now.web.push(9),
    }
    if now.fault != Fault::None && now.fault != Fault::Old {
        now.web.clear();
    }
    let body = match asked.path.as_str() {
        "/v1/catalog/services" if now.web.is_empty() => json!({}),
        "/v1/catalog/services" => json!({"web": []}),
        "/v1/health/service/web" => now.web.iter().map(|n| instance(*n)).collect(),
        other => panic!("nobody should ask for {other}"),
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
async fn an_index_that_goes_backwards_is_read_anew_and_loses_nothing() {
    let fake = Fake::start(100, &[1]).await;
    let mut seen = Follower::synced(fake.source()).await;
    // A cluster restored from a snapshot: lower indexes, and more to see.
    fake.show(5, &[1, 2], Fault::None);
    seen.until("what was restored", |f| f.serving(HOST).len() == 2).await;
    fake.show(6, &[1, 2, 3], Fault::None);
    seen.until("a change after it", |f| f.serving(HOST).len() == 3).await;
    assert_eq!(seen.lost, 0);
    let waited: Vec<u64> =
        fake.server.requests().iter().filter_map(|asked| asked.parameter("index")?.parse().ok()).collect();
    assert!(waited.contains(&100) && waited.contains(&5), "{waited:?}");
    let after = waited.iter().rposition(|i| *i == 5).unwrap();
    assert!(!waited[after..].contains(&100), "{waited:?}");
}

#[tokio::test]
async fn what_cannot_be_read_is_kept_and_what_is_empty_is_not() {
    let fake = Fake::start(7, &[1, 2]).await;
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
async fn an_answer_that_is_too_old_is_asked_of_the_leader() {
    let fake = Fake::start(7, &[1]).await;
    let mut seen = Follower::synced(fake.source()).await;
    fake.show(8, &[1], Fault::Old);
    // Only the leader knows of 9.
    seen.until("the leader's answer", |f| f.serving(HOST) == ["10.0.0.1", "10.0.0.9"]).await;
}

#[tokio::test]
async fn another_agent_answers_when_one_does_not() {
    let [one, other] = [Fake::start(7, &[1]).await, Fake::start(3, &[1, 2]).await];
    let options = options(vec![one.server.url(), other.server.url()]);
    let mut seen = Follower::synced(adapter(options)).await;
    assert_eq!((seen.serving(HOST).len(), other.server.requests().len()), (1, 0));
    drop(one);
    seen.until("the other's answer", |f| f.serving(HOST).len() == 2).await;
    assert_eq!((seen.lost, seen.report().state), (0, SourceState::Live));
}

#[tokio::test]
async fn nearly_everything_gone_at_once_is_held_back() {
    let many: Vec<u8> = (1..=20).collect();
    let fake = Fake::start(7, &many).await;
    let id = model::change::SourceId("Consul".into());
    let guard = MassLossGuard { lost_percent: 90, at_least: 10, hold_for: Duration::from_secs(1) };
    let source = ConsulRegistry::new(id, fake.options(), "c1".into(), guard);
    let mut seen = Follower::synced(source).await;
    fake.show(8, &[], Fault::None);
    seen.until("the problem", |f| f.has_problem(&["20 of 20 endpoints vanished at once"])).await;
    assert_eq!((seen.serving(HOST).len(), seen.lost), (20, 0));
    seen.until("a loss that lasts", |f| !f.has_service(HOST)).await;
    assert!(!seen.has_problem(&["vanished"]));
}

#[tokio::test]
async fn options_reach_the_server() {
    let fake = Fake::start(7, &[1]).await;
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
    testkit::wait::until("a question that waits", async || {
        let asked = fake.server.requests();
        let mut of_web = asked.iter().rev().filter(|a| a.path == "/v1/health/service/web");
        let waiting = of_web.find(|a| a.parameter("index").is_some()).ok_or("none yet".to_owned())?.query.clone();
        let expected = "default&dc=dc%202&ns=team&partition=p&index=7&wait=60s&filter=Service.Port%20%3D%3D%2080";
        if waiting == expected { Ok(()) } else { Err(waiting) }
    })
    .await;
}

/// What a server of lists says: the index, instances of `web` on its node, and those that its health tells.
type Lists = (u64, Vec<u8>, Vec<u8>);

async fn answer_lists(asked: ScriptedRequest, mut lists: watch::Receiver<Lists>) -> Response<String> {
    let wanted: u64 = asked.parameter("index").and_then(|i| i.parse().ok()).unwrap_or(0);
    // The test may end while a question waits. Checks never change here.
    let _ = lists.wait_for(|(index, ..)| wanted == 0 || *index != wanted && !asked.path.contains("state")).await;
    let (index, on_node, healthy) = lists.borrow().clone();
    let listed = |n: &u8| json!({"ID": n.to_string(), "Service": "web", "ModifyIndex": n});
    let body = match asked.path.as_str() {
        "/v1/catalog/services" => json!({"web": []}),
        "/v1/health/state/any" => json!([]),
        "/v1/catalog/nodes" => json!([{"Node": "n"}]),
        "/v1/catalog/node-services/n" => json!({"Services": on_node.iter().map(listed).collect::<Value>()}),
        "/v1/health/service/web" => healthy.iter().map(|n| instance(*n)).collect(),
        other => panic!("nobody should ask for {other}"),
    };
    Response::builder().header("x-consul-index", index).body(body.to_string()).expect("a response")
}

#[tokio::test]
async fn an_instance_that_came_after_a_look_at_nodes_and_left_before_the_next_is_not_kept() {
    let (show, shown) = watch::channel::<Lists>((7, vec![1], vec![1, 2]));
    let server = ScriptedServer::start(move |asked| answer_lists(asked, shown.clone())).await;
    let mut seen = Follower::synced(adapter(ConsulOptions { watches: 0, ..options(vec![server.url()]) })).await;
    assert_eq!(seen.serving(HOST), ["10.0.0.1", "10.0.0.2"]);
    show.send_replace((8, vec![1], vec![1]));
    seen.until("the one that left", |f| f.serving(HOST) == ["10.0.0.1"]).await;
}

#[tokio::test]
async fn hole_13_answers_that_take_longer_than_interval_and_time_out_are_read() {
    let shown = watch::channel(Picture { index: 7, web: vec![1, 2], fault: Fault::None }).1;
    let server = ScriptedServer::start(move |asked| {
        let shown = shown.clone();
        async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            answer(asked, shown).await
        }
    })
    .await;
    let period = |millis| GoDuration(Duration::from_millis(millis));
    let options = ConsulOptions { interval: period(10), timeout: period(100), ..options(vec![server.url()]) };
    let begun = std::time::Instant::now();
    let seen = Follower::synced(adapter(options)).await;
    assert_eq!(seen.serving(HOST).len(), 2);
    eprintln!("in sync after {:?} and {} questions", begun.elapsed(), server.requests().len());
}

/// Twenty services, and this text about the instances of each.
async fn twenty_services(asked: ScriptedRequest, text: String) -> Response<String> {
    let names: serde_json::Map<String, Value> = (0..20).map(|n| (format!("web-{n}"), json!([]))).collect();
    let body = if asked.path == "/v1/catalog/services" { Value::Object(names).to_string() } else { text };
    Response::builder().header("x-consul-index", 7).body(body).expect("a response")
}

/// Waits until the last failure of a registry of at most 4 MiB has this text.
async fn assert_failure_is_named(server: &ScriptedServer, text: &str) {
    let options = ConsulOptions { max_bytes: 4 << 20, ..options(vec![server.url()]) };
    let mut seen = Follower::new(adapter(options));
    seen.until_state(text, |r| r.last_failure.as_ref().is_some_and(|failure| failure.message.contains(text))).await;
    assert_eq!(seen.synced, 0, "a registry that was never read is not in sync");
}

#[tokio::test]
async fn hole_11_an_endless_answer_is_given_up_and_named() {
    let server =
        ScriptedServer::start_endless("/v1/health", |asked| twenty_services(asked, "[[[[[[[[".to_owned())).await;
    assert_failure_is_named(&server, "longer than 1048576 bytes").await;
}

#[tokio::test]
async fn hole_11_answers_that_are_too_long_together_are_given_up_and_named() {
    // Each is below the limit of one answer; since none ends, they are all held at once.
    let text = || "[".repeat(900 << 10);
    let server = ScriptedServer::start_stalled("/v1/health", move |asked| twenty_services(asked, text())).await;
    assert_failure_is_named(&server, "all answers together are longer than 4194304").await;
}

#[tokio::test]
async fn hole_11_small_objects_that_become_large_are_refused() {
    let server = ScriptedServer::start(|asked| async move {
        let many = format!("[{}{{}}]", "{},".repeat(100_000));
        let body = if asked.path == "/v1/catalog/services" { json!({"web": []}).to_string() } else { many };
        Response::builder().header("x-consul-index", 7).body(body).expect("a response")
    })
    .await;
    let mut seen = Follower::new(adapter(ConsulOptions { max_bytes: 4 << 20, ..options(vec![server.url()]) }));
    seen.until_state("the reason", |r| {
        r.last_failure.as_ref().is_some_and(|failure| failure.message.contains("too large to be decoded"))
    })
    .await;
}
