//! Bookmarks and streaming lists, as client-go asks for them.

use http::Request;
use serde_json::{Value, json};
use testkit::client;

use crate::server::Server;

const COLLECTION: &str = "/api/v1/namespaces/shop/configmaps";

/// Status and events of a watch that ends after a second.
async fn watch(server: &Server, query: &str) -> (u16, Vec<Value>) {
    let path = format!("{COLLECTION}?watch=true&timeoutSeconds=1{query}");
    let request = Request::get(path).header("host", "api").body(String::new()).expect("a request");
    let reply = client::send(server.address, request).await.expect("a reply");
    let events = reply.body.lines().map(|line| serde_json::from_str(line).expect("an event"));
    (reply.status.as_u16(), events.collect())
}

async fn create(server: &Server, name: &str) -> u64 {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let request = Request::post(COLLECTION).header("host", "api").header("content-type", "application/json");
    let reply = client::send(server.address, request.body(object.to_string()).expect("a request")).await;
    revision(&reply.expect("a reply").json())
}

fn revision(object: &Value) -> u64 {
    object.pointer("/metadata/resourceVersion").and_then(Value::as_str).and_then(|t| t.parse().ok()).expect("a version")
}

/// Type, name and initial-events-end of each event.
fn shown(events: &[Value]) -> Vec<(&str, &str, bool)> {
    let text = |event: &'_ Value, pointer: &str| event.pointer(pointer).is_some_and(|value| *value == "true");
    let end = "/object/metadata/annotations/k8s.io~1initial-events-end";
    let all = events.iter().map(|event| {
        let name = event.pointer("/object/metadata/name").and_then(Value::as_str).unwrap_or_default();
        (event["type"].as_str().unwrap_or_default(), name, text(event, end))
    });
    all.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn bookmarks_end_streaming_lists_and_watches() {
    let server = Server::start().await;
    let first = create(&server, "a").await;
    let last = create(&server, "b").await;

    // A streaming list: the objects, a bookmark that ends them, and one at the end of the watch.
    let streaming = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let (code, events) = watch(&server, streaming).await;
    let expected = [("ADDED", "a", false), ("ADDED", "b", false), ("BOOKMARK", "", true), ("BOOKMARK", "", false)];
    assert_eq!((code, &shown(&events)[..]), (200, &expected[..]));
    assert!(events[2..].iter().all(|event| revision(&event["object"]) == last), "{events:?}");

    // Bookmarks only for those who ask.
    let (_, events) = watch(&server, "&resourceVersion=0").await;
    assert_eq!(shown(&events), [("ADDED", "a", false), ("ADDED", "b", false)]);
    let (_, events) = watch(&server, &format!("&resourceVersion={first}")).await;
    assert_eq!(shown(&events), [("ADDED", "b", false)]);

    // A bookmark has the revision of all objects, also of those that the watch does not see: a watch from there is complete.
    let (_, events) = watch(&server, "&labelSelector=x%3Dy&allowWatchBookmarks=true").await;
    assert_eq!(shown(&events), [("BOOKMARK", "", false)]);
    let mark = revision(&events[0]["object"]);
    assert_eq!(mark, last);
    create(&server, "c").await;
    let (_, events) = watch(&server, &format!("&resourceVersion={mark}")).await;
    assert_eq!(shown(&events), [("ADDED", "c", false)]);

    // As upstream, only with resourceVersionMatch.
    let (code, events) = watch(&server, "&sendInitialEvents=true").await;
    assert_eq!(code, 422, "{events:?}");
}
