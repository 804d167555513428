//! Eureka's answers that a healthy server seldom gives: deltas that lead astray, peers that know less, passwords.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Response;
use serde_json::{Value, json};
use sources::health::SourceState;
use sources::registry::config::GoDuration;
use sources::registry::eureka::EurekaOptions;
use testkit::scripted::{ScriptedRequest, ScriptedServer};

use crate::eureka::{adapter, options};
use crate::follower::Follower;

const HOST: &str = "web.eureka";

/// What the server would say.
#[derive(Clone, Debug, Default)]
struct Picture {
    /// Numbers of instances of `web` with their status.
    web: BTreeMap<u8, &'static str>,
    /// What the delta tells: number, status, action.
    delta: Vec<(u8, &'static str, &'static str)>,
    /// The hash code of the delta, where it is not that of `web`.
    delta_code: Option<&'static str>,
    /// The status of every answer that is none.
    failing: Option<u16>,
    delta_is_off: bool,
}

struct Fake {
    server: ScriptedServer,
    picture: Arc<Mutex<Picture>>,
}

impl Fake {
    async fn start(web: &[u8]) -> Fake {
        let web = web.iter().map(|n| (*n, "UP")).collect();
        let picture = Arc::new(Mutex::new(Picture { web, ..Picture::default() }));
        let shown = picture.clone();
        let server = ScriptedServer::start(move |asked| {
            let now = shown.lock().expect("no holder panics").clone();
            async move { answer(&asked, &now) }
        })
        .await;
        Fake { server, picture }
    }

    fn show(&self, edit: impl FnOnce(&mut Picture)) {
        edit(&mut self.picture.lock().expect("no holder panics"));
    }

    fn options(&self) -> EurekaOptions {
        EurekaOptions { interval: GoDuration(Duration::from_millis(20)), ..options(vec![self.server.url()]) }
    }

    /// How often the whole list was asked for.
    fn whole_lists(&self) -> usize {
        self.server.requests().iter().filter(|asked| asked.path == "/apps").count()
    }
}

fn answer(asked: &ScriptedRequest, now: &Picture) -> Response<String> {
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
async fn a_delta_is_applied_once_however_often_it_comes() {
    let fake = Fake::start(&[1, 2]).await;
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
    assert_eq!(fake.whole_lists(), 1, "deltas were enough");
}

#[tokio::test]
async fn a_delta_that_leads_astray_is_followed_by_the_whole_list() {
    let fake = Fake::start(&[1]).await;
    let mut seen = Follower::synced(adapter(fake.options())).await;
    // The window of the delta is over: the server has 2 and 3, the delta tells of 3 alone.
    fake.show(|p| {
        p.web = BTreeMap::from([(1, "UP"), (2, "UP"), (3, "UP")]);
        p.delta = vec![(3, "UP", "ADDED")];
    });
    seen.until("the whole list", |f| f.serving(HOST).len() == 3).await;
    assert_eq!((fake.whole_lists(), seen.lost), (2, 0));
}

#[tokio::test]
async fn a_server_without_deltas_is_read_whole() {
    let fake = Fake::start(&[1]).await;
    fake.show(|p| p.delta_is_off = true);
    let mut seen = Follower::synced(adapter(fake.options())).await;
    fake.show(|p| _ = p.web.insert(2, "UP"));
    seen.until("a change", |f| f.serving(HOST).len() == 2).await;
}

#[tokio::test]
async fn what_cannot_be_read_is_kept_and_what_is_gone_is_not() {
    let fake = Fake::start(&[1, 2]).await;
    let options = EurekaOptions { lease: GoDuration(Duration::from_secs(1)), ..fake.options() };
    let mut seen = Follower::synced(adapter(options)).await;
    for status in [500, 403, 404] {
        fake.show(|p| p.failing = Some(status));
        seen.until_state("a stale source", |r| matches!(r.state, SourceState::Stale { .. })).await;
        fake.show(|p| p.failing = None);
        seen.until_state("a live source", |r| r.state == SourceState::Live).await;
    }
    assert_eq!((seen.serving(HOST).len(), seen.lost), (2, 0));
    // A server that comes back with nothing is believed when leases would be over.
    fake.show(|p| p.web.clear());
    seen.until("gone", |f| !f.has_service(HOST)).await;
}

#[tokio::test]
async fn a_peer_that_knows_less_takes_nothing_away_within_a_lease() {
    let [one, other] = [Fake::start(&[1, 2]).await, Fake::start(&[2, 3]).await];
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
    let fake = Fake::start(&[1]).await;
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
async fn user_and_password_may_stand_in_the_url_and_are_never_shown() {
    let fake = Fake::start(&[1]).await;
    let address = fake.server.url().replace("http://", "http://me:secret@");
    let mut seen = Follower::synced(adapter(EurekaOptions { addresses: vec![address], ..fake.options() })).await;
    let asked = fake.server.requests();
    // "me:secret"
    assert!(asked.iter().all(|asked| asked.headers.get("authorization").unwrap() == "Basic bWU6c2VjcmV0"));
    fake.show(|p| p.failing = Some(401));
    seen.until_state("a stale source", |r| matches!(r.state, SourceState::Stale { .. })).await;
    let told = seen.report().last_failure.unwrap().message;
    assert!(told.contains("answered 401") && !told.contains("secret"), "{told}");
    assert_eq!(seen.lost, 0);
}

/// A server that rebuilds its answers while instances register serves one without the last of them, with a hash code
/// that fits, until its cache expires.
#[tokio::test]
async fn hole_13_a_delta_that_lags_behind_the_list_hides_nothing() {
    let fake = Fake::start(&[1]).await;
    let options = EurekaOptions { recheck: GoDuration(Duration::from_millis(100)), ..fake.options() };
    let mut seen = Follower::synced(adapter(options)).await;
    fake.show(|p| {
        p.web = BTreeMap::from([(1, "UP"), (2, "UP"), (3, "UP")]);
        p.delta = vec![(2, "UP", "ADDED")];
        p.delta_code = Some("UP_2_");
    });
    seen.until("what the list alone has", |f| f.serving(HOST).len() == 3).await;
    assert_eq!(seen.lost, 0);
}

#[tokio::test]
async fn hole_13_a_list_that_lags_behind_the_delta_takes_nothing_away() {
    let fake = Fake::start(&[1, 2]).await;
    let options = EurekaOptions { recheck: GoDuration(Duration::from_millis(50)), ..fake.options() };
    let mut seen = Follower::synced(adapter(options)).await;
    fake.show(|p| {
        p.delta = vec![(3, "UP", "ADDED")];
        p.delta_code = Some("UP_3_");
    });
    seen.until("what the delta alone has", |f| f.serving(HOST).len() == 3).await;
    let lists = fake.whole_lists();
    seen.until_state("more checks by the list", |_| fake.whole_lists() > lists + 3).await;
    assert_eq!((seen.serving(HOST).len(), seen.lost), (3, 0));
}

/// The answer, of a server that takes longer for it than the adapter waits at first, and than its interval.
async fn slow_apps(before_head: Duration, between_pieces: Duration) -> (ScriptedServer, Arc<Mutex<Vec<usize>>>) {
    let answered = Arc::<Mutex<Vec<usize>>>::default();
    let noted = answered.clone();
    let web = BTreeMap::from([(1, "UP"), (2, "UP")]);
    let server = ScriptedServer::start_in_pieces(between_pieces, move |asked| {
        let picture = Picture { web: web.clone(), ..Picture::default() };
        let noted = noted.clone();
        async move {
            tokio::time::sleep(before_head).await;
            let answer = answer(&asked, &picture);
            noted.lock().expect("no holder panics").push(answer.body().len());
            answer
        }
    })
    .await;
    (server, answered)
}

#[tokio::test]
async fn hole_13_a_list_that_takes_longer_than_interval_and_time_out_is_read() {
    let (server, _) = slow_apps(Duration::from_secs(1), Duration::ZERO).await;
    let period = |millis| GoDuration(Duration::from_millis(millis));
    let options = EurekaOptions {
        interval: period(10),
        timeout: period(100),
        lease: period(1000),
        ..options(vec![server.url()])
    };
    let begun = std::time::Instant::now();
    let mut seen = Follower::synced(adapter(options)).await;
    assert_eq!(seen.serving(HOST).len(), 2);
    eprintln!("in sync after {:?} and {} questions", begun.elapsed(), server.requests().len());
    seen.until_state("a live source", |r| r.state == SourceState::Live).await;
}

#[tokio::test]
async fn hole_13_a_list_that_keeps_arriving_is_not_given_up() {
    let (server, answered) = slow_apps(Duration::ZERO, Duration::from_millis(50)).await;
    let period = |millis| GoDuration(Duration::from_millis(millis));
    let options = EurekaOptions { interval: period(10), timeout: period(1000), ..options(vec![server.url()]) };
    let begun = std::time::Instant::now();
    let seen = Follower::synced(adapter(options)).await;
    let (lists, taken) = (answered.lock().unwrap().len(), begun.elapsed());
    eprintln!("in sync after {taken:?}, with pieces of 10 bytes every 50 ms");
    assert!(taken > Duration::from_secs(1), "the whole answer takes longer than the time-out: {taken:?}");
    assert_eq!((seen.serving(HOST).len(), lists), (2, 1), "endpoints, answers begun");
}
