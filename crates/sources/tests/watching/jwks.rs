//! Keys behind addresses that policies name, from a server that answers as the test says.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Response;
use model::config::{Key, Kind};
use model::fetch_requests::{FetchRequests, KeyRequest, KeySource};
use model::settings::IpBlocks;
use sources::fetch::jwks::Jwks;
use sources::http::AddressPolicy;
use testkit::scripted::ScriptedServer;
use tokio::sync::watch;

use crate::follower::Follower;

const FIRST: &str = r#"{"keys":[{"kid":"a"},{"kid":"b"}]}"#;
const SHUFFLED: &str = r#"{"keys":[{"kid":"b"},{"kid":"a"}]}"#;
const SECOND: &str = r#"{"keys":[{"kid":"c"}]}"#;

/// What the server answers by path: a status and a text.
type Pages = Arc<Mutex<BTreeMap<&'static str, (u16, String)>>>;

async fn server(pages: &Pages) -> ScriptedServer {
    let pages = pages.clone();
    ScriptedServer::start(move |asked| {
        let found = pages.lock().expect("no test panicked").get(asked.path.as_str()).cloned();
        let (status, text) = found.unwrap_or((404, "nothing here".to_owned()));
        let reply = Response::builder().status(status);
        let reply = if status == 302 { reply.header("location", &text) } else { reply };
        async move { reply.body(text).expect("a good reply") }
    })
    .await
}

fn wanted(sources: &[KeySource]) -> Option<FetchRequests> {
    let key = Key { kind: Kind::RequestAuthentication, namespace: "shop".into(), name: "tokens".into() };
    let wish = KeyRequest { timeout: Duration::from_secs(30), by: [key].into() };
    let keys = sources.iter().map(|source| (source.clone(), wish.clone())).collect();
    Some(FetchRequests { keys, ..FetchRequests::default() })
}

fn uri(server: &ScriptedServer, path: &str) -> KeySource {
    KeySource::Uri(format!("{}{path}", server.url()).into())
}

fn loopback() -> AddressPolicy {
    AddressPolicy::Except {
        allowed: IpBlocks(vec!["127.0.0.0/8".parse().expect("a block")]),
        blocked: IpBlocks::default(),
    }
}

#[tokio::test]
async fn keys_are_fetched_by_address_and_by_issuer_before_the_source_is_in_sync() {
    let pages = Pages::default();
    let server = server(&pages).await;
    pages.lock().unwrap().extend([
        ("/keys", (200, FIRST.to_owned())),
        ("/issuer/.well-known/openid-configuration", (200, format!(r#"{{"jwks_uri":"{}/other"}}"#, server.url()))),
        ("/other", (302, "/moved".to_owned())),
        ("/moved", (200, SECOND.to_owned())),
    ]);
    let issuer = KeySource::Issuer(format!("{}/issuer/", server.url()).into());
    let (requests, receiver) = watch::channel(None);
    let mut follower = Follower::new(Jwks::new(receiver, Duration::from_secs(3600), loopback()));
    requests.send_replace(wanted(&[uri(&server, "/keys"), issuer.clone()]));
    follower.until("in sync", |f| f.synced > 0).await;
    assert_eq!(follower.keys.get(&uri(&server, "/keys")).map(|k| &**k), Some(FIRST));
    assert_eq!(follower.keys.get(&issuer).map(|k| &**k), Some(SECOND));
    requests.send_replace(wanted(&[]));
    follower.until("no keys without a request", |f| f.keys.is_empty()).await;
}

#[tokio::test]
async fn new_keys_replace_old_ones_and_failures_keep_the_last() {
    let pages = Pages::default();
    let server = server(&pages).await;
    let set = |status: u16, text: &str| _ = pages.lock().unwrap().insert("/keys", (status, text.to_owned()));
    let source = uri(&server, "/keys");
    let (_requests, receiver) = watch::channel(wanted(std::slice::from_ref(&source)));
    set(503, "not yet");
    let mut follower = Follower::synced(Jwks::new(receiver, Duration::from_millis(20), loopback())).await;
    let expected = ["RequestAuthentication shop/tokens", "status 503: not yet", "its tokens are rejected"];
    assert!(follower.keys.is_empty() && follower.has_problem(&expected), "{:?}", follower.problems);
    set(200, FIRST);
    follower.until("the first keys", |f| f.problems.is_empty() && f.keys.len() == 1).await;
    for (status, text) in [(200, "no JSON"), (200, r#"{"keys":[]}"#), (500, "")] {
        set(status, text);
        follower.until("a failure", |f| f.has_problem(&["the last keys stay in use"])).await;
        assert_eq!(follower.keys[&source], FIRST);
        set(200, SHUFFLED);
        follower.until("keys again", |f| f.problems.is_empty()).await;
        assert_eq!(follower.keys[&source], FIRST, "an order is no change");
    }
    set(200, SECOND);
    follower.until("the second keys", |f| *f.keys[&source] == *SECOND).await;
}

#[tokio::test]
async fn cve_2026_41413_a_redirect_to_a_forbidden_address_is_not_followed() {
    let pages = Pages::default();
    let server = server(&pages).await;
    pages.lock().unwrap().extend([
        ("/metadata", (302, "http://169.254.169.254/latest".to_owned())),
        ("/loop", (302, "/loop".to_owned())),
        ("/long", (200, "x".repeat(2 << 20))),
    ]);
    let sources = ["/metadata", "/loop", "/long"].map(|path| uri(&server, path));
    let (_requests, receiver) = watch::channel(wanted(&sources));
    let follower = Follower::synced(Jwks::new(receiver, Duration::from_secs(3600), loopback())).await;
    assert!(follower.keys.is_empty());
    for expected in [
        &["/metadata", "169.254.169.254", "not allowed"][..],
        &["/loop", "redirects"],
        &["/long", "longer than 1048576 bytes"],
    ] {
        assert!(follower.has_problem(expected), "{expected:?}: {:?}", follower.problems);
    }
    let asked = server.requests().len();
    let (_requests, receiver) = watch::channel(wanted(&[uri(&server, "/keys")]));
    let follower = Follower::synced(Jwks::new(receiver, Duration::from_secs(3600), AddressPolicy::Remote)).await;
    assert!(follower.has_problem(&["127.0.0.1", "not allowed"]), "{:?}", follower.problems);
    assert_eq!(server.requests().len(), asked, "no request to loopback");
}
