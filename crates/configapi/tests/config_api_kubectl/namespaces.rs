//! Namespaces that are deleted while clients make objects in them.

use std::sync::Arc;

use http::{Method, Request};
use serde_json::{Value, json};
use testkit::client;

use crate::server::Server;

async fn send(server: &Server, method: Method, path: &str, body: &Value) -> (u16, String) {
    let request = Request::builder().method(method).uri(path).header("host", "api");
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = request.header("content-type", "application/json").body(body).expect("a request");
    let reply = client::send(server.address, request).await.expect("a reply");
    (reply.status.as_u16(), reply.body)
}

/// Names of the ConfigMaps of a namespace.
async fn left(server: &Server, namespace: &str) -> Vec<String> {
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let (_, body) = send(server, Method::GET, &path, &Value::Null).await;
    let list: Value = serde_json::from_str(&body).expect("a list");
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items.iter().map(|item| item["metadata"]["name"].to_string()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_that_races_the_deletion_of_its_namespace_leaves_nothing() {
    let server = Arc::new(Server::start().await);
    let (mut made, mut refused) = (0, 0);
    for round in 0..20 {
        let name = format!("round-{round}");
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        assert_eq!(send(&server, Method::POST, "/api/v1/namespaces", &namespace).await.0, 201);
        let writers = (0..4).map(|writer| tokio::spawn(write(server.clone(), name.clone(), writer)));
        let writers: Vec<_> = writers.collect();
        // Some objects exist before the deletion.
        testkit::wait::until("an object", async || {
            if left(&server, &name).await.is_empty() { Err("none".to_owned()) } else { Ok(()) }
        })
        .await;
        let (code, body) = send(&server, Method::DELETE, &format!("/api/v1/namespaces/{name}"), &Value::Null).await;
        assert_eq!(code, 200, "{body}");
        for writer in writers {
            let (done, failed) = writer.await.expect("a writer");
            (made, refused) = (made + done, refused + failed);
        }
        assert_eq!(left(&server, &name).await, Vec::<String>::new(), "round {round}");
        let (code, _) = send(&server, Method::GET, &format!("/api/v1/namespaces/{name}"), &Value::Null).await;
        assert_eq!(code, 404, "round {round}");
    }
    println!("{made} made, {refused} refused");
    assert!(made > 0 && refused > 0, "{made} made, {refused} refused");
}

/// Makes objects until one is refused. Returns how many were made and refused.
async fn write(server: Arc<Server>, namespace: String, writer: usize) -> (usize, usize) {
    let (mut made, mut refused) = (0, 0);
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    for number in 0.. {
        let name = format!("object-{writer}-{number}");
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        match send(&server, Method::POST, &path, &object).await {
            (201, _) => made += 1,
            // Being terminated, or gone.
            (403 | 404, _) => refused += 1,
            (code, body) => panic!("status {code}: {body}"),
        }
        if refused > 0 {
            break;
        }
    }
    (made, refused)
}
