//! One mesh told by files, by Consul and by Eureka gives an Envoy the same configuration, and several registries
//! at once serve side by side.

use std::fs;

use serde_json::{Value, json};
use testkit::consul::Consul;
use testkit::eureka::{Eureka, Instance};
use testkit::{servers, wait};

use crate::stage::{Stage, backends};

const RULES: &str = "\
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: cart, namespace: shop}
spec:
  host: cart.shop.mesh
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: cart, namespace: shop}
spec:
  hosts: [cart.shop.mesh]
  http:
  - route:
    - {destination: {host: cart.shop.mesh, subset: v1}, weight: 90}
    - {destination: {host: cart.shop.mesh, subset: v2}, weight: 10}
";

/// What Envoy has, without what differs from run to run, and without what a ServiceEntry does not say: the health
/// of endpoints and the short name of a service.
async fn configuration(stage: &Stage) -> Value {
    let dump = wait::until("a warm Envoy", async || {
        let warming = stage.envoy.admin().warming().await?;
        if warming.is_empty() {
            stage.envoy.admin().json("/config_dump?include_eds").await
        } else {
            Err("warming".into())
        }
    })
    .await;
    let sections = dump["configs"].as_array().cloned().unwrap_or_default();
    let kept = |section: &Value| !section["@type"].as_str().unwrap_or_default().contains("Bootstrap");
    let mut all: Value = sections.into_iter().filter(kept).collect();
    strip(&mut all);
    all
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for key in ["last_updated", "version_info", "health_status", "static_clusters", "static_endpoint_configs"] {
                map.remove(key);
            }
            if map.contains_key("host") && map.contains_key("namespace") {
                map.remove("name");
            }
            map.values_mut().for_each(strip);
        }
        Value::Array(list) => list.iter_mut().for_each(strip),
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_consul_and_eureka_give_the_same_configuration() {
    if servers::without("consul") || servers::without("eureka.jar") {
        return;
    }
    let (consul, eureka) = tokio::join!(Consul::start(), Eureka::start());
    let (port, all) = backends(["v1", "v2"]).await;
    let mut endpoints = String::new();
    for (index, (backend, version)) in all.iter().zip(["v1", "v2"]).enumerate() {
        let (address, id) = (backend.address().ip().to_string(), format!("cart-{index}"));
        endpoints += &format!("  - {{address: {address}, locality: dc1, labels: {{version: {version}}}}}\n");
        let meta = json!({"version": version, "protocol": "http"});
        let service = json!({"ID": &id, "Service": "cart", "Address": address, "Port": port, "Meta": meta});
        consul.register("outside", &service, "passing").await;
        let metadata = json!({"version": version, "protocol": "http", "region": "dc1"});
        let app = "cart".to_owned();
        eureka.register(&Instance { app, id, address, port, status: "UP".to_owned(), metadata }).await;
    }
    eureka.lists("cart-1").await;
    let entry = format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: cart, namespace: shop}}\nspec:\n  \
         hosts: [cart.shop.mesh]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
         ports: [{{name: http-{port}, number: {port}, protocol: HTTP}}]\n  endpoints:\n{endpoints}---\n{RULES}"
    );
    let folder = tempfile::tempdir().unwrap();
    let described = |name: &str, text: String| {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        vec![format!("--registryConfig={}", file.display())]
    };
    let (consul, eureka) = (consul.url(), eureka.url());
    let (of_consul, of_eureka) = ("'{service}.shop.mesh'", "'{name}.shop.mesh'");
    let consul = format!("- consul: {{addresses: ['{consul}'], namespace: shop, host: {of_consul}}}\n");
    let eureka =
        format!("- eureka: {{addresses: ['{eureka}'], namespace: shop, host: {of_eureka}, interval: 500ms}}\n");

    let mut found = Vec::new();
    for (args, documents) in [
        (Vec::new(), entry.as_str()),
        (described("consul.yaml", format!("registries:\n{consul}")), RULES),
        (described("eureka.yaml", format!("registries:\n{eureka}")), RULES),
    ] {
        let stage = Stage::start(&args, documents).await;
        stage.answered_by("cart.shop.mesh", port, &["v1", "v2"]).await;
        found.push(configuration(&stage).await);
    }
    assert!(found[0].to_string().contains("outbound|"), "{}", found[0]);
    for (other, name) in found[1..].iter().zip(["Consul", "Eureka"]) {
        let differences = testkit::difference::differences(&found[0], other);
        assert!(differences.is_empty(), "files and {name} differ:\n{differences:#?}");
    }

    // Both at once: one host, endpoints of both, and the page of problems says so.
    let both = described("both.yaml", format!("conflicts: {{order: [Eureka]}}\nregistries:\n{consul}{eureka}"));
    let stage = Stage::start(&both, RULES).await;
    stage.answered_by("cart.shop.mesh", port, &["v1", "v2"]).await;
    let problems = testkit::client::get(stage.discovery.http(), "discovery", "/debug/problems").await.unwrap();
    assert!(problems.body.contains("registries Eureka, Consul all have it"), "{}", problems.body);
}
