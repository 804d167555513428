//! `pilotctl explain` and `pilotctl ps` with a real server, a simulated proxy, and a real Envoy that verifies.

mod access;
mod agreement;
#[path = "../../../explain/tests/generated/mod.rs"]
mod generated;

use std::process::{Command, Output};

use serde_json::Value;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::fleet::{Fleet, FleetOptions};
use testkit::{programs, servers, wait};

const SHOP: &str = r#"apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cart, namespace: shop}
spec:
  hosts: [cart.example.com]
  addresses: [10.96.0.7]
  ports: [{number: 8000, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints:
  - {address: 127.0.0.1, labels: {version: v1}}
  - {address: 127.0.0.2, labels: {version: v2}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: cart, namespace: shop}
spec:
  host: cart.example.com
  subsets:
  - {name: v1, labels: {version: v1}}
  - {name: v2, labels: {version: v2}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: cart, namespace: shop}
spec:
  hosts: [cart.example.com]
  http:
  - name: for-testers
    match: [{headers: {x-user: {exact: tester}}}]
    route: [{destination: {host: cart.example.com, subset: v2}}]
  - name: old
    match: [{uri: {exact: /old}}]
    redirect: {uri: /new}
  - name: all
    timeout: 3s
    route:
    - {destination: {host: cart.example.com, subset: v1}, weight: 90}
    - {destination: {host: cart.example.com, subset: v2}, weight: 10}
"#;

fn pilotctl(server: &DiscoveryProcess, arguments: &[&str]) -> Output {
    let address = server.monitoring().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_pilotctl")).args(arguments).args(["--server", &address]).output();
    output.unwrap_or_else(|e| panic!("could not run pilotctl: {e}"))
}

fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn requests_are_explained_and_verified() {
    if servers::without("envoy") {
        return;
    }
    let files = vec![("shop.yaml".to_owned(), SHOP.to_owned())];
    let binary = programs::binary("discovery", "pilot-discovery");
    let options = DiscoveryOptions { files, ..DiscoveryOptions::default() };
    let server = DiscoveryProcess::start(&binary.to_string_lossy(), options).await;
    let _proxy = Fleet::connect(server.grpc(), FleetOptions { workloads: 1, ..FleetOptions::default() }).await;
    wait::until("a synced proxy", async || {
        let listed = printed(&pilotctl(&server, &["ps"]));
        if listed.contains("p0.ns0") && listed.contains("SYNCED") && !listed.contains("STALE") {
            Ok(())
        } else {
            Err(listed)
        }
    })
    .await;

    let url = "http://cart.example.com:8000/items";
    let explained = |arguments: &[&str]| {
        let all: Vec<&str> = ["explain", "--from", "p0.ns0", "--verify"].iter().chain(arguments).copied().collect();
        pilotctl(&server, &all)
    };
    let plain = explained(&["GET", url]);
    let text = printed(&plain);
    assert_eq!(plain.status.code(), Some(0), "{text}");
    for expected in [
        "90 % to cluster outbound|8000|v1|cart.example.com",
        "10 % to cluster outbound|8000|v2|cart.example.com",
        "127.0.0.1:8000",
        "timeout: 3 s",
        "not route 1 (for-testers): header x-user must be \"tester\"; it is missing",
        "not route 2 (old): path /items is not /old",
        "virtual-service/cart (",
        "shop.yaml:22, rule in line 34)",
        "a private Envoy with these routes does the same",
    ] {
        assert!(text.contains(expected), "no {expected:?} in\n{text}");
    }
    let tester = printed(&explained(&[url, "-H", "X-User: tester"]));
    assert!(tester.contains("100 % to cluster outbound|8000|v2|cart.example.com"), "{tester}");
    let old = explained(&["http://cart.example.com:8000/old", "-o", "json"]);
    let old: Value = serde_json::from_slice(&old.stdout).unwrap_or_else(|e| panic!("{e}: {}", printed(&old)));
    assert_eq!(old["outcome"]["redirected"]["location"], "http://cart.example.com:8000/new", "{old}");
    assert_eq!(old["verified"]["agrees"], true, "{old}");

    let listed = printed(&pilotctl(&server, &["pc", "all", "p0.ns0"]));
    for expected in [
        ["cart.example.com", "8000", "v1", "outbound", "EDS", "cart.shop"].as_slice(),
        &["0.0.0.0", "8000", "Route:", "8000"],
        &["8000", "cart.example.com:8000", "/old", "cart.shop"],
        &["127.0.0.2:8000", "HEALTHY", "outbound|8000|v2|cart.example.com"],
    ] {
        let has_all = |line: &str| expected.iter().all(|word| line.split_whitespace().any(|cell| cell == *word));
        assert!(listed.lines().any(has_all), "no line with {expected:?} in\n{listed}");
    }
}

#[tokio::test]
async fn mistakes_are_answered_with_a_reason() {
    let binary = programs::binary("discovery", "pilot-discovery");
    let mut server = DiscoveryProcess::start(&binary.to_string_lossy(), DiscoveryOptions::default()).await;
    let unknown = pilotctl(&server, &["explain", "--from", "missing.shop", "http://a/"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(printed(&unknown).contains("missing.shop"), "{}", printed(&unknown));
    let url = pilotctl(&server, &["explain", "--from", "a.b", "cart"]);
    assert!(printed(&url).contains("cart: not a URL"), "{}", printed(&url));
    assert!(printed(&pilotctl(&server, &["ps"])).contains("no proxy is connected"));
    server.process().kill();
    let gone = pilotctl(&server, &["ps"]);
    assert_eq!(gone.status.code(), Some(3), "{}", printed(&gone));
    assert_eq!(pilotctl(&server, &["explain", "--from", "a.b", "http://a/"]).status.code(), Some(3));
}
