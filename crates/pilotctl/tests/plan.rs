//! `pilotctl plan` foretells exactly the resources that then change, with a real server and simulated Envoys.

// Clippy recognizes tests by their attribute, but not the helper functions.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Output};

use fastrand::Rng;
use http::Request;
use serde_json::Value;
use testkit::client;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::tracked::{HeldVersionsByType, TrackedOptions, TrackedProxy};
use testkit::{programs, servers, wait};

const CHANGES: usize = 50;
const SEED: u64 = 19;

fn service(name: &str, namespace: &str, port: u16) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  \
         hosts: [{name}.example.com]\n  addresses: [10.96.0.{}]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
         ports: [{{number: {port}, name: http, protocol: HTTP}}]\n  endpoints:\n  \
         - {{address: 10.1.0.{}, labels: {{version: v1}}}}\n  - {{address: 10.2.0.{}, labels: {{version: v2}}}}\n",
        port % 200,
        port % 250,
        port % 250,
    )
}

/// A random change: file name, text, and the text of other kinds of objects that it may replace.
fn change(random: &mut Rng, known: &BTreeMap<String, String>) -> (String, Option<String>) {
    let target = random.u16(0..4);
    let host = format!("s{target}.example.com");
    let namespace = ["shop", "bank"][random.usize(0..2)];
    let weight = random.u8(1..100);
    let meta = |kind: &str, group: &str, name: &str| {
        format!("apiVersion: {group}\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}}}\n")
    };
    let networking = "networking.istio.io/v1";
    let (name, text) = match random.u8(0..9) {
        0 => {
            let name = format!("vs{target}");
            let meta = meta("VirtualService", networking, &name);
            let text = format!(
                "{meta}spec: {{hosts: [{host}], http: [{{route: [{{destination: {{host: {host}, subset: v1}}, weight: {weight}}}, \
                 {{destination: {{host: {host}, subset: v2}}, weight: {}}}]}}]}}\n",
                100 - weight
            );
            (name, text)
        }
        1 => {
            let name = format!("dr{target}");
            let meta = meta("DestinationRule", networking, &name);
            let text = format!(
                "{meta}spec: {{host: {host}, trafficPolicy: {{connectionPool: {{tcp: {{maxConnections: {weight}}}}}}}, \
                 subsets: [{{name: v1, labels: {{version: v1}}}}, {{name: v2, labels: {{version: v2}}}}]}}\n"
            );
            (name, text)
        }
        2 => (format!("se{target}"), service(&format!("new{target}"), namespace, 8100 + target)),
        3 => {
            let text = meta("Sidecar", networking, "default")
                + &format!("spec: {{egress: [{{hosts: ['*/s{target}.example.com', '*/s3.example.com']}}]}}\n");
            ("sidecar".to_owned(), text)
        }
        4 => {
            let text = meta("PeerAuthentication", "security.istio.io/v1", "default")
                + &format!("spec: {{mtls: {{mode: {}}}}}\n", ["STRICT", "PERMISSIVE", "DISABLE"][random.usize(0..3)]);
            ("peers".to_owned(), text)
        }
        5 => {
            let text = meta("AuthorizationPolicy", "security.istio.io/v1", "allow")
                + &format!("spec: {{rules: [{{to: [{{operation: {{paths: ['/p{weight}']}}}}]}}]}}\n");
            ("allow".to_owned(), text)
        }
        6 => {
            let text = format!(
                "{}spec: {{selector: {{istio: gateway}}, servers: [{{port: {{number: {}, name: http, protocol: HTTP}}, \
                 hosts: ['*.example.com']}}]}}\n---\n{}spec: {{hosts: ['{host}'], gateways: [edge], http: [{{route: \
                 [{{destination: {{host: {host}}}}}], timeout: {weight}s}}]}}\n",
                meta("Gateway", networking, "edge"),
                80 + u16::from(weight % 3),
                meta("VirtualService", networking, "edge"),
            );
            ("edge".to_owned(), text)
        }
        7 => {
            let text = meta("EnvoyFilter", "networking.istio.io/v1alpha3", "patch")
                + &format!(
                    "spec: {{configPatches: [{{applyTo: CLUSTER, match: {{context: SIDECAR_OUTBOUND}}, patch: {{operation: \
                     MERGE, value: {{connect_timeout: {weight}s}}}}}}]}}\n"
                );
            ("patch".to_owned(), text)
        }
        _ => {
            let files: Vec<&String> = known.keys().collect();
            match random.choice(&files) {
                Some(file) => return ((*file).clone(), None),
                None => ("se9".to_owned(), service("new9", namespace, 8109)),
            }
        }
    };
    // Objects of one kind and name in both namespaces are different files.
    (format!("{name}-{namespace}.yaml"), Some(text))
}

fn nodes() -> [TrackedOptions; 3] {
    let options = |node: &str, labels: &[(&str, &str)]| TrackedOptions {
        node: node.to_owned(),
        labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        ..TrackedOptions::default()
    };
    [
        options("sidecar~10.1.0.1~cart.shop~shop.svc.cluster.local", &[("app", "cart")]),
        options("sidecar~10.1.0.2~till.bank~bank.svc.cluster.local", &[("app", "till")]),
        options("router~10.1.0.3~edge.shop~shop.svc.cluster.local", &[("istio", "gateway")]),
    ]
}

/// Type, name and change of each resource that differs.
type Changed = BTreeSet<(String, String, &'static str)>;

fn difference(before: &HeldVersionsByType, after: &HeldVersionsByType) -> Changed {
    let flat = |held: &HeldVersionsByType| -> BTreeMap<(String, String), String> {
        let of_type = |(kind, of): (&String, &BTreeMap<String, String>)| {
            let kind = kind.clone();
            of.clone().into_iter().map(move |(name, version)| ((kind.clone(), name), version)).collect::<Vec<_>>()
        };
        held.iter().flat_map(of_type).collect()
    };
    let (before, after) = (flat(before), flat(after));
    let names: BTreeSet<&(String, String)> = before.keys().chain(after.keys()).collect();
    let change = |key: &&(String, String)| {
        let change = match (before.get(*key), after.get(*key)) {
            (None, _) => "added",
            (_, None) => "removed",
            (before, after) if before != after => "changed",
            _ => return None,
        };
        Some((key.0.clone(), key.1.clone(), change))
    };
    names.iter().filter_map(change).collect()
}

fn foretold(plan: &Value, proxy: &str) -> Changed {
    let groups = plan["groups"].as_array().into_iter().flatten();
    let own =
        groups.filter(|group| group["proxies"].as_array().is_some_and(|names| names.iter().any(|name| name == proxy)));
    let text = |resource: &Value, field: &str| resource[field].as_str().unwrap_or_default().to_owned();
    own.flat_map(|group| group["resources"].as_array().cloned().unwrap_or_default())
        .map(|resource| {
            let change = match &*text(&resource, "change") {
                "added" => "added",
                "removed" => "removed",
                _ => "changed",
            };
            (text(&resource, "type"), text(&resource, "name"), change)
        })
        .collect()
}

async fn post(server: &DiscoveryProcess, path: &str, body: &str) -> Value {
    let request = Request::post(path).header("host", "localhost").body(body.to_owned()).unwrap();
    let reply = client::send(server.monitoring(), request).await.unwrap_or_else(|e| panic!("{path}: {e}"));
    assert!(reply.status.is_success(), "{path}: {} {}", reply.status, reply.body);
    reply.json()
}

/// Waits until all proxies have a change, or are without it.
async fn settled(server: &DiscoveryProcess, text: &str, delete: &str) {
    wait::until("a change on all proxies", async || {
        let report = post(server, &format!("/api/v1/wait?timeout=5{delete}"), text).await;
        if report["state"] == "done" { Ok(()) } else { Err(report.to_string()) }
    })
    .await;
}

async fn start() -> (DiscoveryProcess, Vec<TrackedProxy>) {
    let text: String = (0..4).map(|n| service(&format!("s{n}"), "shop", 8000 + n) + "---\n").collect();
    let rules: String = (0..4)
        .map(|n| {
            format!(
                "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: base{n}, namespace: shop}}\n\
                 spec: {{host: s{n}.example.com, subsets: [{{name: v1, labels: {{version: v1}}}}, {{name: v2, labels: \
                 {{version: v2}}}}]}}\n---\n"
            )
        })
        .collect();
    let files = vec![("base.yaml".to_owned(), text.clone() + &rules)];
    let binary = programs::binary("discovery", "pilot-discovery");
    let server =
        DiscoveryProcess::start(&binary.to_string_lossy(), DiscoveryOptions { files, ..DiscoveryOptions::default() })
            .await;
    let proxies: Vec<TrackedProxy> =
        nodes().into_iter().map(|options| TrackedProxy::connect(server.grpc(), options)).collect();
    wait::until("connected proxies", async || {
        let listed = client::get(server.monitoring(), "localhost", "/api/v1/proxies").await?.json();
        if listed["total"] == 3 { Ok(()) } else { Err(listed.to_string()) }
    })
    .await;
    settled(&server, &text, "").await;
    (server, proxies)
}

#[tokio::test]
async fn plans_foretell_exactly_what_changes() {
    let (server, proxies) = start().await;
    let names = ["cart.shop", "till.bank", "edge.shop"];
    let mut random = Rng::with_seed(SEED);
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    let (mut touched, mut resources) = (0, 0);
    for number in 0..CHANGES {
        let (file, text) = change(&mut random, &known);
        let delete = if text.is_some() { "" } else { "&delete" };
        let body = text.clone().unwrap_or_else(|| known[&file].clone());
        let before: Vec<HeldVersionsByType> = proxies.iter().map(TrackedProxy::versions).collect();
        let plan = post(&server, &format!("/api/v1/plan?namespace=shop{delete}"), &body).await;
        match &text {
            Some(text) => {
                server.write(&file, text);
                known.insert(file.clone(), text.clone());
            }
            None => {
                server.remove(&file);
                known.remove(&file);
            }
        }
        settled(&server, &body, delete).await;
        for ((proxy, name), before) in proxies.iter().zip(names).zip(&before) {
            let (expected, seen) = (foretold(&plan, name), difference(before, &proxy.versions()));
            assert_eq!(expected, seen, "change {number} of {file} for {name}:\n{body}\n{plan:#}");
            touched += usize::from(!seen.is_empty());
            resources += seen.len();
        }
    }
    println!("{CHANGES} changes: {resources} resources of {touched} proxies changed, all foretold");
    assert!(touched > CHANGES / 2, "most changes should do something: {touched}");
}

fn pilotctl(server: &DiscoveryProcess, arguments: &[&str]) -> Output {
    let address = server.monitoring().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_pilotctl")).args(arguments).args(["--server", &address]).output();
    output.unwrap_or_else(|e| panic!("could not run pilotctl: {e}"))
}

fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn a_plan_shows_requests_and_the_verdict_of_envoy() {
    if servers::without("envoy") {
        return;
    }
    let (server, _proxies) = start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    };
    let canary = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: canary, namespace: shop}\nspec: \
                  {hosts: [s1.example.com], http: [{route: [{destination: {host: s1.example.com, subset: v1}, weight: 90}, \
                  {destination: {host: s1.example.com, subset: v2}, weight: 10}]}]}\n";
    let change = file("canary.yaml", canary);
    let envoy = servers::binary("envoy").to_string_lossy().into_owned();
    let good = pilotctl(&server, &["plan", "-f", &change, "--envoy", &envoy]);
    let text = printed(&good);
    assert_eq!(good.status.code(), Some(0), "{text}");
    for expected in [
        "+ VirtualService shop/canary",
        "of 3 proxies get different resources",
        "~ RDS 8001",
        "GET http://s1.example.com",
        "90 % outbound|8001|v1|s1.example.com, 10 % outbound|8001|v2|s1.example.com",
        "Envoy accepts the configuration of",
    ] {
        assert!(text.contains(expected), "no {expected:?} in\n{text}");
    }
    let limited = pilotctl(&server, &["plan", "-f", &change, "--envoy", &envoy, "--groups", "0"]);
    assert_eq!(limited.status.code(), Some(0), "{}", printed(&limited));
    assert!(printed(&limited).contains("groups of proxies, because of --groups"), "{}", printed(&limited));
    assert!(!text.contains("not checked") && !printed(&limited).contains("Envoy accepts"), "{text}");
    let patch = "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: bad, namespace: shop}\nspec: \
                 {configPatches: [{applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND}, patch: {operation: MERGE, value: \
                 {connect_timeout: -1s}}}]}\n";
    let bad = pilotctl(&server, &["plan", "-f", &file("bad.yaml", patch), "--envoy", &envoy]);
    assert_eq!(bad.status.code(), Some(1), "{}", printed(&bad));
    assert!(printed(&bad).contains("Envoy rejects the configuration of"), "{}", printed(&bad));
    let wrong = file("wrong.yaml", &canary.replace("weight: 90", "weight: -1"));
    let wrong = pilotctl(&server, &["plan", "-f", &wrong]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(printed(&wrong).contains("wrong.yaml:") && printed(&wrong).contains("weight"), "{}", printed(&wrong));
}

#[tokio::test]
async fn a_plan_and_a_translation_need_no_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    std::fs::create_dir(path("now")).unwrap();
    std::fs::write(path("now/s.yaml"), service("s1", "shop", 8001)).unwrap();
    let route = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a, namespace: shop}\nspec: {hosts: \
                 [s1.example.com], http: [{timeout: 3s, route: [{destination: {host: s1.example.com}}]}]}\n";
    std::fs::write(path("change.yaml"), route).unwrap();
    let run = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_pilotctl")).args(arguments).env("NO_COLOR", "1").output().unwrap()
    };
    let node = "sidecar~10.1.0.1~cart.shop~shop.svc.cluster.local";
    let change = path("change.yaml");
    let arguments = ["plan", "-f", &change, "--config", &path("now"), "--node", node, "--no-validate", "-o", "json"];
    let plan = run(&arguments);
    let report: Value = serde_json::from_slice(&plan.stdout).unwrap_or_else(|e| panic!("{e}: {}", printed(&plan)));
    assert_eq!(
        report["groups"][0]["resources"],
        serde_json::json!([{"type": "RDS", "name": "8001", "change": "changed"}])
    );
    let translated = run(&["translate", &path("now"), "--node", node]);
    let text = printed(&translated);
    assert_eq!(translated.status.code(), Some(0), "{text}");
    for expected in ["outbound", "10.1.0.1:8001", "s1.example.com"] {
        assert!(text.contains(expected), "no {expected:?} in\n{text}");
    }
    let wrong = run(&["translate", &path("now"), "--node", "nonsense"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(printed(&wrong).contains("four parts"), "{}", printed(&wrong));
}

#[test]
fn a_plan_without_an_envoy_lacks_its_verdict_and_stops_ci() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    std::fs::write(path("now.yaml"), service("s1", "shop", 8001)).unwrap();
    std::fs::write(path("next.yaml"), service("s2", "shop", 8002)).unwrap();
    let node = "sidecar~10.1.0.1~cart.shop~shop.svc.cluster.local";
    let plan = |change: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pilotctl"));
        // Neither a setting, nor the cache folder, nor the PATH has an Envoy.
        command.env_remove("PILOTAGE_ENVOY").env("PILOTAGE_CACHE", folder.path()).env("PATH", folder.path());
        command.args(["plan", "-f", &path(change), "--config", &path("now.yaml"), "--node", node]).args(more);
        command.output().unwrap()
    };
    let missing = plan("next.yaml", &[]);
    assert_eq!(missing.status.code(), Some(1), "{}", printed(&missing));
    assert!(
        printed(&missing).contains("the verdict of Envoy is missing: could not find an Envoy"),
        "{}",
        printed(&missing)
    );
    let missing = plan("next.yaml", &["-o", "json"]);
    let report: Value = serde_json::from_slice(&missing.stdout).unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(report["verdictMissing"].is_string() && report["effects"][0]["envoy"].is_null(), "{report:#}");
    let unwanted = plan("next.yaml", &["--no-validate"]);
    assert_eq!(unwanted.status.code(), Some(0), "{}", printed(&unwanted));
    assert!(!printed(&unwanted).contains("verdict"), "{}", printed(&unwanted));
    // Nothing changes, so there is nothing to ask.
    let same = plan("now.yaml", &[]);
    assert_eq!(same.status.code(), Some(0), "{}", printed(&same));
}
