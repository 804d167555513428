//! Responses that a healthy Eureka seldom gives: incomplete deltas, peers with fewer instances; and credentials.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Response;
use serde_json::{Value, json};
use sources::health::SourceState;
use sources::registry::eureka::EurekaOptions;
use sources::registry::shared_options::GoDuration;
use testkit::scripted::{ScriptedRequest, ScriptedServer};

use crate::eureka::{adapter, options};
use crate::follower::Follower;

const HOST: &str = "web.eureka";

/// The state of the fake server.
#[derive(Clone, Debug, Default)]
struct RegistryState {
    /// Numbers of instances of `web` with their status.
    web: BTreeMap<u8, &'static str>,
    /// Instances of the delta: number, status, action.
    delta: Vec<(u8, &'static str, &'static str)>,
    /// The hash code of the delta, where it is not that of `web`.
    delta_code: Option<&'static str>,
    /// The HTTP status of all responses, where the server fails.
    failing: Option<u16>,
    delta_is_off: bool,
}

struct FakeEureka {
    server: ScriptedServer,
    registry: Arc<Mutex<RegistryState>>,
}

impl FakeEureka {
    async fn start(web: &[u8]) -> FakeEureka {
        let web = web.iter().map(|n| (*n, "UP")).collect();
        let registry = Arc::new(Mutex::new(RegistryState { web, ..RegistryState::default() }));
        let shown = registry.clone();
        let server = ScriptedServer::start(move |asked| {
            let now = shown.lock().expect("no holder panics").clone();
            async move { respond(&asked, &now) }
        })
        .await;
        FakeEureka { server, registry }
    }

    fn show(&self, edit: impl FnOnce(&mut RegistryState)) {
        edit(&mut self.registry.lock().expect("no holder panics"));
    }

    fn options(&self) -> EurekaOptions {
        EurekaOptions { interval: GoDuration(Duration::from_millis(20)), ..options(vec![self.server.url()]) }
    }

    /// How often the full registry was requested.
    fn full_reads(&self) -> usize {
        self.server.requests().iter().filter(|asked| asked.path == "/apps").count()
    }
}

fn respond(asked: &ScriptedRequest, now: &RegistryState) -> Response<String> {
    let reply =
        |status: u16, body: Value| Response::builder().status(status).body(body.to_string()).expect("a response");
    if let Some(status) = now.failing {
        return reply(status, json!("no"));
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for status in now.web.values() {
        *counts.entry(status).or_default() += 1;
    }
    let code: String = counts.iter().map(|(status, count)| format!("{status}_{count}_")).collect();
    let instances: Vec<Value> = match asked.path.as_str() {
        "/apps" => now.web.iter().map(|(n, status)| instance(*n, status, "")).collect(),
        "/apps/delta" if now.delta_is_off => return reply(403, json!("off")),
        "/apps/delta" => now.delta.iter().map(|(n, status, action)| instance(*n, status, action)).collect(),
        _ => return reply(404, json!("nothing here")),
    };
    let code = now.delta_code.filter(|_| asked.path == "/apps/delta").map_or(code, str::to_owned);
    let application = json!([{"name": "WEB", "instance": instances}]);
    reply(200, json!({"applications": {"apps__hashcode": code, "application": application}}))
}

fn instance(number: u8, status: &str, action: &str) -> Value {
    json!({
        "instanceId": number.to_string(), "app": "WEB", "ipAddr": format!("10.0.0.{number}"), "status": status,
        "port": {"$": 80, "@enabled": "true"}, "actionType": action,
    })
}

#[tokio::test]
async fn a_repeated_delta_is_applied_once() {
    let fake = FakeEureka::start(&[1, 2]).await;
    let mut seen = Follower::synced(adapter(fake.options())).await;
    fake.show(|p| {
        p.web = BTreeMap::from([(1, "UP"), (3, "UP")]);
        p.delta = vec![(2, "UP", "DELETED"), (3, "UP", "ADDED")];
    });
    seen.until("the delta", |f| f.serving(HOST) == ["10.0.0.1", "10.0.0.3"]).await;
    fake.show(|p| {
        p.web.insert(1, "DOWN");
        p.delta = vec![(1, "DOWN", "MODIFIED")];
    });
    seen.until("another", |f| f.serving(HOST) == ["10.0.0.3"]).await;
    assert_eq!(fake.full_reads(), 1, "deltas were enough");
}

#[tokio::test]
async fn a_delta_with_a_wrong_hash_code_is_followed_by_a_full_read() {
    let fake = FakeEureka::start(&[1]).await;
    let mut seen = Follower::synced(adapter(fake.options())).await;
    // The delta window has passed: the server has 2 and 3, the delta contains 3 only.
    fake.show(|p| {
        p.web = BTreeMap::from([(1, "UP"), (2, "UP"), (3, "UP")]);
        p.delta = vec![(3, "UP", "ADDED")];
    });
    seen.until("the full registry", |f| f.serving(HOST).len() == 3).await;
    assert_eq!((fake.full_reads(), seen.lost), (2, 0));
}

#[tokio::test]
async fn a_server_without_deltas_is_always_read_in_full() {
    let fake = FakeEureka::start(&[1]).await;
    fake.show(|p| p.delta_is_off = true);
    let mut seen = Follower::synced(adapter(fake.options())).await;
    fake.show(|p| _ = p.web.insert(2, "UP"));
    seen.until("a change", |f| f.serving(HOST).len() == 2).await;
}

#[tokio::test]
async fn failures_keep_instances_and_an_empty_registry_removes_them() {
    let fake = FakeEureka::start(&[1, 2]).await;
    let options = EurekaOptions { lease: GoDuration(Duration::from_secs(1)), ..fake.options() };
    let mut seen = Follower::synced(adapter(options)).await;
    for status in [500, 403, 404] {
        fake.show(|p| p.failing = Some(status));
        seen.until_state("a stale source", |r| matches!(r.state, SourceState::Stale { .. })).await;
        fake.show(|p| p.failing = None);
        seen.until_state("a live source", |r| r.state == SourceState::Live).await;
    }
    assert_eq!((seen.serving(HOST).len(), seen.lost), (2, 0));
    // An empty registry after a failure takes effect when the lease is over.
    fake.show(|p| p.web.clear());
    seen.until("gone", |f| !f.has_service(HOST)).await;
}

#[tokio::test]
async fn a_peer_with_fewer_instances_removes_none_within_a_lease() {
    let [one, other] = [FakeEureka::start(&[1, 2]).await, FakeEureka::start(&[2, 3]).await];
    let mut options = EurekaOptions { lease: GoDuration(Duration::from_secs(2)), ..one.options() };
    options.addresses.push(other.server.url());
    let mut seen = Follower::synced(adapter(options)).await;
    assert_eq!((seen.serving(HOST).len(), other.server.requests().len()), (2, 0), "the first peer is enough");
    drop(one);
    seen.until("both halves", |f| f.serving(HOST).len() == 3).await;
    assert_eq!(seen.lost, 0);
    seen.until("the end of the lease", |f| f.serving(HOST) == ["10.0.0.2", "10.0.0.3"]).await;
}

#[tokio::test]
async fn the_password_is_read_from_its_file() {
    let fake = FakeEureka::start(&[1]).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "secret\n").unwrap();
    let options = EurekaOptions { username: "me".into(), password_file: Some(file), ..fake.options() };
    let _seen = Follower::synced(adapter(options)).await;
    let asked = fake.server.requests();
    // "me:secret"
    assert_eq!(asked[0].headers.get("authorization").unwrap(), "Basic bWU6c2VjcmV0");
}

#[tokio::test]
async fn credentials_may_be_in_the_url_and_are_never_shown() {
    let fake = FakeEureka::start(&[1]).await;
    let address = fake.server.url().replace("http://", "http://me:secret@");
    let mut seen = Follower::synced(adapter(EurekaOptions { addresses: vec![address], ..fake.options() })).await;
    let asked = fake.server.requests();
    // "me:secret"
    assert!(asked.iter().all(|asked| asked.headers.get("authorization").unwrap() == "Basic bWU6c2VjcmV0"));
    fake.show(|p| p.failing = Some(401));
    seen.until_state("a stale source", |r| matches!(r.state, SourceState::Stale { .. })).await;
    let message = seen.report().last_failure.unwrap().message;
    assert!(message.contains("answered 401") && !message.contains("secret"), "{message}");
    assert_eq!(seen.lost, 0);
}

/// A server that rebuilds a cached response while instances register may serve it without the last ones, with a
/// matching hash code, until the cache expires.
#[tokio::test]
async fn hole_13_a_delta_that_lags_behind_the_list_hides_nothing() {
    let fake = FakeEureka::start(&[1]).await;
    let options = EurekaOptions { recheck: GoDuration(Duration::from_millis(100)), ..fake.options() };
    let mut seen = Follower::synced(adapter(options)).await;
    fake.show(|p| {
        p.web = BTreeMap::from([(1, "UP"), (2, "UP"), (3, "UP")]);
        p.delta = vec![(2, "UP", "ADDED")];
        p.delta_code = Some("UP_2_");
    });
    seen.until("the instance of the list", |f| f.serving(HOST).len() == 3).await;
    assert_eq!(seen.lost, 0);
}

#[tokio::test]
async fn hole_13_a_list_that_lags_behind_the_delta_removes_nothing() {
    let fake = FakeEureka::start(&[1, 2]).await;
    let options = EurekaOptions { recheck: GoDuration(Duration::from_millis(50)), ..fake.options() };
    let mut seen = Follower::synced(adapter(options)).await;
    fake.show(|p| {
        p.delta = vec![(3, "UP", "ADDED")];
        p.delta_code = Some("UP_3_");
    });
    seen.until("the instance of the delta", |f| f.serving(HOST).len() == 3).await;
    let lists = fake.full_reads();
    seen.until_state("more full reads", |_| fake.full_reads() > lists + 3).await;
    assert_eq!((seen.serving(HOST).len(), seen.lost), (3, 0));
}

/// A server whose responses take longer than the initial timeout and the polling interval, and the sizes of its
/// responses.
async fn slow_apps(before_head: Duration, between_pieces: Duration) -> (ScriptedServer, Arc<Mutex<Vec<usize>>>) {
    let responses = Arc::<Mutex<Vec<usize>>>::default();
    let noted = responses.clone();
    let web = BTreeMap::from([(1, "UP"), (2, "UP")]);
    let server = ScriptedServer::start_in_pieces(between_pieces, move |asked| {
        let registry = RegistryState { web: web.clone(), ..RegistryState::default() };
        let noted = noted.clone();
        async move {
            tokio::time::sleep(before_head).await;
            let response = respond(&asked, &registry);
            noted.lock().expect("no holder panics").push(response.body().len());
            response
        }
    })
    .await;
    (server, responses)
}

#[tokio::test]
async fn hole_13_a_list_slower_than_interval_and_timeout_is_read() {
    let (server, _) = slow_apps(Duration::from_secs(1), Duration::ZERO).await;
    let period = |millis| GoDuration(Duration::from_millis(millis));
    let options = EurekaOptions {
        interval: period(10),
        timeout: period(100),
        lease: period(1000),
        ..options(vec![server.url()])
    };
    let started = std::time::Instant::now();
    let mut seen = Follower::synced(adapter(options)).await;
    assert_eq!(seen.serving(HOST).len(), 2);
    eprintln!("in sync after {:?} and {} requests", started.elapsed(), server.requests().len());
    seen.until_state("a live source", |r| r.state == SourceState::Live).await;
}

#[tokio::test]
async fn hole_13_a_list_that_keeps_arriving_is_not_aborted() {
    let (server, responses) = slow_apps(Duration::ZERO, Duration::from_millis(50)).await;
    let period = |millis| GoDuration(Duration::from_millis(millis));
    let options = EurekaOptions { interval: period(10), timeout: period(1000), ..options(vec![server.url()]) };
    let started = std::time::Instant::now();
    let seen = Follower::synced(adapter(options)).await;
    let (lists, taken) = (responses.lock().unwrap().len(), started.elapsed());
    eprintln!("in sync after {taken:?}, with pieces of 10 bytes every 50 ms");
    assert!(taken > Duration::from_secs(1), "the response takes longer than the timeout: {taken:?}");
    assert_eq!((seen.serving(HOST).len(), lists), (2, 1), "endpoints, responses");
}
