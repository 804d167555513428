//! The objects of the API as a store of the mesh: next to a folder of files, with an IngressRule at a gateway, and as a
//! source of the Mesh Configuration Protocol.

use serde_json::{Value, json};
use testkit::backend::HttpBackend;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::envoy::{Bootstrap, Envoy, XdsTransport};
use testkit::{client, ports, wait};
use tokio::net::UnixStream;

use super::{ApiMesh, BINARY, service, socket_request};

fn entry(host: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: pay, namespace: default}}\n\
         spec: {{hosts: [{host}], location: MESH_EXTERNAL, resolution: DNS, ports: [{{number: 443, name: tls, protocol: TLS}}]}}\n"
    )
}

/// Waits until this is the host of the ServiceEntry that the mesh uses, and whether a conflict is reported.
async fn uses(mesh: &ApiMesh, host: &str, is_conflict: bool) {
    wait::until(host, async || {
        let objects = client::get(mesh.discovery.http(), "discovery", "/debug/configz").await?.json();
        let of_pay = |object: &&Value| object["metadata"]["name"] == "pay";
        let hosts: Vec<Value> =
            objects.as_array().into_iter().flatten().filter(of_pay).map(|o| o["spec"]["hosts"].clone()).collect();
        let problems = client::get(mesh.discovery.http(), "discovery", "/debug/problems").await?.body;
        let name = "stores files and configAPI both have this object; only that of files is used";
        if hosts == [json!([host])] && problems.contains(name) == is_conflict {
            Ok(())
        } else {
            Err(format!("{hosts:?}, {problems}"))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_have_precedence_over_the_api() {
    let mesh = ApiMesh::start(&[]).await;
    mesh.kubectl(&["apply", "-f", "-"], &entry("api.example")).await;
    uses(&mesh, "api.example", false).await;
    mesh.discovery.write("pay.yaml", &entry("file.example"));
    uses(&mesh, "file.example", true).await;
    // The API has its own object all the same, and a change of it has no effect.
    mesh.kubectl(&["apply", "-f", "-"], &entry("other.example")).await;
    let stored = mesh.kubectl(&["get", "serviceentry", "pay", "-o", "jsonpath={.spec.hosts[0]}"], "").await;
    assert_eq!(stored, "other.example");
    uses(&mesh, "file.example", true).await;
    mesh.discovery.remove("pay.yaml");
    uses(&mesh, "other.example", false).await;
}

/// A RouteRule that redirects all calls.
fn redirection(name: &str, precedence: u32, to: &str) -> String {
    format!(
        "apiVersion: config.istio.io/v1alpha2\nkind: RouteRule\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{destination: {{name: cart}}, precedence: {precedence}, redirect: {{uri: {to}}}}}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn route_rules_of_both_stores_are_ordered_by_precedence() {
    let mesh = ApiMesh::start(&[]).await;
    let port = ports::free();
    mesh.kubectl(&["apply", "-f", "-"], &service(port, ports::free())).await;
    let grpc = mesh.discovery.grpc().port();
    let bootstrap = Bootstrap::sidecar(grpc, XdsTransport::Delta, "client", "callers", json!({"app": "client"}));
    let mut envoy = Envoy::start(&bootstrap).await;
    let address = envoy.listener(&format!("127.0.0.1_{port}")).await;
    let leads_to = async |path: &str| {
        wait::until(path, async || {
            let reply = client::get(address, "cart.shop.svc.cluster.local", "/").await.map_err(|e| e.to_string())?;
            let found = reply.header("location").to_owned();
            if found.ends_with(path) { Ok(()) } else { Err(format!("status {} to {found:?}", reply.status)) }
        })
        .await;
    };
    mesh.discovery.write("low.yaml", &redirection("low", 1, "/file-1"));
    leads_to("/file-1").await;
    mesh.kubectl(&["apply", "-f", "-"], &redirection("middle", 2, "/api-2")).await;
    leads_to("/api-2").await;
    mesh.discovery.write("high.yaml", &redirection("high", 3, "/file-3"));
    leads_to("/file-3").await;
    mesh.kubectl(&["apply", "-f", "-"], &redirection("middle", 4, "/api-4")).await;
    leads_to("/api-4").await;
    mesh.kubectl(&["delete", "routerules", "middle", "-n", "shop"], "").await;
    leads_to("/file-3").await;
    mesh.discovery.remove("high.yaml");
    leads_to("/file-1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ingress_rule_opens_a_gateway() {
    let mesh = ApiMesh::start(&[]).await;
    let (port, edge, backend) = (ports::free(), ports::free(), HttpBackend::start("cart").await);
    mesh.kubectl(&["apply", "-f", "-"], &service(port, backend.port())).await;
    let grpc = mesh.discovery.grpc().port();
    let labels = json!({"istio": "ingress"});
    let bootstrap = Bootstrap::router(grpc, XdsTransport::Delta, "ingress", "istio-system", labels);
    let mut envoy = Envoy::start(&bootstrap).await;
    let rule = format!(
        "apiVersion: config.istio.io/v1alpha2\nkind: IngressRule\nmetadata: {{name: cart, namespace: shop}}\n\
         spec:\n  port: {edge}\n  destination: {{name: cart}}\n  destinationServicePort: {port}\n  \
         match: {{request: {{headers: {{uri: {{prefix: /cart}}}}}}}}\n"
    );
    mesh.kubectl(&["apply", "-f", "-"], &rule).await;
    let address = envoy.listener(&format!("0.0.0.0_{edge}")).await;
    let status = async |path: &str, expected: u16| {
        wait::until(path, async || {
            let reply = client::get(address, "shop.example.com", path).await.map_err(|e| e.to_string())?;
            let found = reply.status.as_u16();
            if found == expected { Ok(()) } else { Err(format!("{path}: {found}")) }
        })
        .await;
    };
    status("/cart/1", 200).await;
    status("/other", 404).await;
    mesh.kubectl(&["apply", "-f", "-"], &rule.replace("prefix: /cart", "prefix: /other")).await;
    status("/other", 200).await;
    status("/cart/1", 404).await;
    mesh.kubectl(&["delete", "ingressrules", "cart", "-n", "shop"], "").await;
    wait::until("a closed gateway", async || match client::get(address, "shop.example.com", "/other").await {
        Err(_) => Ok(()),
        Ok(reply) if reply.status.as_u16() == 404 => Ok(()),
        Ok(reply) => Err(reply.status.to_string()),
    })
    .await;
}

/// Objects of kinds that have a collection of the Mesh Configuration Protocol: today's, and old ones.
const SHARED: [(&str, &str); 4] = [
    (
        "/apis/networking.istio.io/v1/namespaces/default/virtualservices",
        r#"{"metadata": {"name": "shared"}, "spec": {"hosts": ["a.example.com"], "http": [{"directResponse": {"status": 418}}]}}"#,
    ),
    (
        "/apis/security.istio.io/v1/namespaces/default/authorizationpolicies",
        r#"{"metadata": {"name": "shared"}, "spec": {}}"#,
    ),
    (
        "/apis/authentication.istio.io/v1alpha1/namespaces/default/policies",
        r#"{"metadata": {"name": "default"}, "spec": {"peers": [{"mtls": {}}]}}"#,
    ),
    (
        "/apis/rbac.istio.io/v1alpha1/namespaces/default/serviceroles",
        r#"{"metadata": {"name": "shared"}, "spec": {"rules": [{"services": ["*"], "methods": ["GET"]}]}}"#,
    ),
];

/// Waits until the server has these objects, as `Kind name`, and no others.
async fn has_only(server: &DiscoveryProcess, expected: &[&str]) {
    wait::until(&format!("{expected:?}"), async || {
        let objects = client::get(server.http(), "discovery", "/debug/configz").await?.json();
        let text =
            |object: &Value, pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or("").to_owned();
        let name = |object: &Value| format!("{} {}", text(object, "/kind"), text(object, "/metadata/name"));
        let mut found: Vec<String> = objects.as_array().into_iter().flatten().map(name).collect();
        found.sort();
        if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_mcp_follow_the_objects_of_the_api() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("config.sock");
    let args = vec![
        format!("--configAPI=unix://{}", socket.display()),
        format!("--configStorage={}", folder.path().join("config.redb").display()),
    ];
    let env = vec![("ENABLE_XDS_API_GENERATOR_AUTH".to_owned(), "false".to_owned())];
    let source = DiscoveryProcess::start(BINARY, DiscoveryOptions { args, env, ..DiscoveryOptions::default() }).await;
    let request = async |method: &str, path: &str, body: &str| {
        let stream = UnixStream::connect(&socket).await.expect("a connection");
        let reply = socket_request(stream, method, path, body).await;
        assert!(reply.starts_with("HTTP/1.1 20"), "{reply}");
    };
    let args = vec![format!("--mcpServerAddrs=mcp://{}", source.grpc())];
    let sink = DiscoveryProcess::start(BINARY, DiscoveryOptions { args, ..DiscoveryOptions::default() }).await;
    for (collection, object) in SHARED {
        request("POST", collection, object).await;
    }
    let all = ["AuthorizationPolicy shared", "Policy default", "ServiceRole shared", "VirtualService shared"];
    has_only(&sink, &all).await;
    request("DELETE", &format!("{}/shared", SHARED[0].0), "").await;
    request("DELETE", &format!("{}/default", SHARED[2].0), "").await;
    has_only(&sink, &["AuthorizationPolicy shared", "ServiceRole shared"]).await;
}
