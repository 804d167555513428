//! Requests that no client of Kubernetes sends: each gets the status of upstream and changes nothing.

use http::{Method, Request};
use serde_json::{Value, json};
use testkit::client;

use crate::server::Server;

const COLLECTION: &str = "/api/v1/namespaces/shop/configmaps";
const OBJECT: &str = "/api/v1/namespaces/shop/configmaps/known";
const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const PATCH: &str = "application/json-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

async fn send(server: &Server, method: Method, path: &str, content: &str, body: String) -> (u16, Value) {
    let request = Request::builder().method(method).uri(path).header("host", "api").header("content-type", content);
    let reply = client::send(server.address, request.body(body).expect("a request")).await.expect("a reply");
    (reply.status.as_u16(), reply.json())
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}})
}

/// Bodies of a create, and the status of each.
fn creates() -> Vec<(&'static str, &'static str, String, u16)> {
    let with = |pointer: &str, value: Value| {
        let mut object = config_map("new");
        let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
        object.pointer_mut(parent).expect("its parent")[key] = value;
        object.to_string()
    };
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    vec![
        ("nothing", JSON, String::new(), 400),
        ("half an object", JSON, "{\"apiVersion\":".to_owned(), 400),
        ("two objects", JSON, format!("{0}{0}", config_map("new")), 400),
        ("a list", JSON, "[]".to_owned(), 400),
        ("a number", JSON, "7".to_owned(), 400),
        ("null", JSON, "null".to_owned(), 400),
        ("a hundred thousand brackets", JSON, deep, 400),
        ("another kind", JSON, with("/kind", json!("Secret")), 400),
        ("another version", JSON, with("/apiVersion", json!("v2")), 400),
        ("another namespace", JSON, with("/metadata/namespace", json!("default")), 400),
        ("no name", JSON, with("/metadata/name", json!("")), 422),
        ("a name with capitals", JSON, with("/metadata/name", json!("New")), 422),
        ("a name with a slash", JSON, with("/metadata/name", json!("a/b")), 422),
        ("a name of two dots", JSON, with("/metadata/name", json!("..")), 422),
        ("a name of 254 letters", JSON, with("/metadata/name", json!("x".repeat(254))), 422),
        ("a label of 64 letters", JSON, with("/metadata/labels", json!({"a": "x".repeat(64)})), 422),
        ("XML", "application/xml", "<a/>".to_owned(), 415),
        ("a broken protobuf", "application/vnd.kubernetes.protobuf", "k8s\0\u{1}".to_owned(), 400),
    ]
}

/// Patches of an object, and the status of each.
fn patches() -> Vec<(&'static str, &'static str, String, u16)> {
    let copies = json!([{"op": "add", "path": "/data/a", "value": "x".repeat(100_000)}]).as_array().cloned();
    let copy = |n: usize| json!({"op": "copy", "from": "/data", "path": format!("/data/copy-{n}")});
    let bomb: Vec<Value> = copies.unwrap_or_default().into_iter().chain((0..40).map(copy)).collect();
    let many: Vec<Value> = (0..10_001).map(|_| json!({"op": "test", "path": "/kind", "value": "ConfigMap"})).collect();
    vec![
        ("nothing", MERGE, String::new(), 400),
        ("a list", MERGE, "[1]".to_owned(), 400),
        ("another name", MERGE, json!({"metadata": {"name": "other"}}).to_string(), 400),
        ("an old version", MERGE, json!({"metadata": {"resourceVersion": "1"}}).to_string(), 409),
        ("no list", PATCH, "{}".to_owned(), 400),
        ("an unknown operation", PATCH, json!([{"op": "burn", "path": "/data"}]).to_string(), 400),
        ("a missing path", PATCH, json!([{"op": "remove", "path": "/data/none"}]).to_string(), 422),
        ("a failed test", PATCH, json!([{"op": "test", "path": "/data/a", "value": "c"}]).to_string(), 422),
        ("the whole object removed", PATCH, json!([{"op": "replace", "path": "", "value": 7}]).to_string(), 400),
        ("too many operations", PATCH, Value::from(many).to_string(), 413),
        ("copies of copies", PATCH, Value::from(bomb).to_string(), 413),
        ("half an object", STRATEGIC, "{\"data\":".to_owned(), 400),
        ("no manager", APPLY, config_map("known").to_string(), 422),
        ("no kind of patch", JSON, "{}".to_owned(), 415),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_bodies_are_refused_and_change_nothing() {
    let server = Server::start().await;
    let (code, made) = send(&server, Method::POST, COLLECTION, JSON, config_map("known").to_string()).await;
    assert_eq!(code, 201, "{made}");
    let of = |method: Method, path: &'static str, rows: Vec<(&'static str, &'static str, String, u16)>| {
        rows.into_iter().map(move |(name, content, body, code)| (method.clone(), path, name, content, body, code))
    };
    let replaces = vec![
        ("another name", JSON, config_map("other").to_string(), 400),
        ("half an object", JSON, "{".to_owned(), 400),
        ("an old version", JSON, stale().to_string(), 409),
    ];
    let deletes = vec![
        ("half an object", JSON, "{".to_owned(), 400),
        ("another uid", JSON, json!({"preconditions": {"uid": "x"}}).to_string(), 409),
    ];
    let rows = of(Method::POST, COLLECTION, creates())
        .chain(of(Method::PATCH, OBJECT, patches()))
        .chain(of(Method::PUT, OBJECT, replaces))
        .chain(of(Method::DELETE, OBJECT, deletes));
    let (mut count, mut wrong) = (0, Vec::new());
    for (method, path, name, content, body, expected) in rows {
        let (code, status) = send(&server, method.clone(), path, content, body).await;
        count += 1;
        if code != expected || status["kind"] != "Status" || status["code"] != code {
            wrong.push(format!("{method} with {name}: {code}, expected {expected}: {}", status["message"]));
        }
    }
    println!("{count} malformed requests");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let (_, list) = send(&server, Method::GET, COLLECTION, JSON, String::new()).await;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1), "{list}");
    assert_eq!(list["items"][0]["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"], "{list}");
}

fn stale() -> Value {
    let mut object = config_map("known");
    object["metadata"]["resourceVersion"] = json!("1");
    object
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_that_occur_twice_are_refused_or_reported_as_the_client_asks() {
    let server = Server::start().await;
    let body = |name: &str| {
        format!("{{\"metadata\": {{\"name\": \"{name}\"}}, \"data\": {{\"a\": \"first\", \"a\": \"last\"}}}}")
    };
    let post = async |query: &str, name: &str| {
        let request = Request::post(format!("{COLLECTION}?fieldValidation={query}"))
            .header("host", "api")
            .header("content-type", JSON)
            .body(body(name));
        client::send(server.address, request.expect("a request")).await.expect("a reply")
    };
    let refused = post("Strict", "strict").await;
    assert_eq!(refused.status.as_u16(), 400);
    assert!(refused.body.contains("strict decoding error: duplicate field \\\"data.a\\\""), "{}", refused.body);
    let warned = post("Warn", "warned").await;
    assert_eq!((warned.status.as_u16(), warned.json()["data"]["a"].as_str()), (201, Some("last")));
    assert_eq!(warned.header("warning"), "299 - \"duplicate field \\\"data.a\\\"\"");
    let ignored = post("Ignore", "ignored").await;
    assert_eq!((ignored.status.as_u16(), ignored.header("warning")), (201, ""));

    // A part of an object is checked too.
    let patch = "{\"data\": {\"b\": \"first\", \"b\": \"last\"}}".to_owned();
    let path = format!("{COLLECTION}/warned?fieldValidation=Strict");
    let (code, status) = send(&server, Method::PATCH, &path, MERGE, patch).await;
    assert_eq!(code, 400, "{status}");
}
