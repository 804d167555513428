//! Objects at the limits of their size.

use http::Request;
use serde_json::json;
use testkit::client;

use crate::server::Server;

async fn create(server: &Server, name: &str, bytes: usize) -> (u16, String) {
    let data = json!({"text": "x".repeat(bytes)});
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    let request = Request::post("/api/v1/namespaces/shop/configmaps").header("host", "api");
    let request = request.header("content-type", "application/json").body(object.to_string()).expect("a request");
    let reply = client::send(server.address, request).await.expect("a reply");
    (reply.status.as_u16(), reply.body)
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_megabytes_are_refused_and_objects_below_the_limit_work() {
    let server = Server::start().await;
    let (code, body) = create(&server, "large", 10 << 20).await;
    assert_eq!(code, 413, "{body}");
    assert!(body.contains("3145728"), "{body}");
    // The rest of a very long body is not read, so the client may see the end of the connection instead.
    let request = Request::post("/api/v1/namespaces/shop/configmaps").header("host", "api");
    let sent = client::send(server.address, request.body("x".repeat(100 << 20)).expect("a request")).await;
    assert!(sent.map_or(true, |reply| reply.status.as_u16() == 413));
    let (code, body) = create(&server, "fits", (3 << 20) - 300).await;
    assert_eq!(code, 201, "{}", &body[..body.len().min(300)]);
    let kept = server.kubectl(&["get", "configmaps", "-n", "shop", "-o", "name"], "").await;
    assert_eq!(kept, "configmap/fits\n");
}
