//! A folder of files next to the API: which one has precedence, and the order of RouteRules of both.

use serde_json::{Value, json};
use testkit::envoy::{Bootstrap, Envoy, XdsTransport};
use testkit::{client, ports, wait};

use super::{ApiMesh, service};

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
