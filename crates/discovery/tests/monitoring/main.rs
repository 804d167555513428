//! Metrics as a real Prometheus sees them: every query of our dashboard, of our alert rules and of upstream's control-plane
//! dashboard, and the queries with which Kiali draws its graph, on requests that agents count from Envoy's access log.

// Clippy recognizes tests by their attribute, but not the helper functions.
#![allow(clippy::unwrap_used)]

mod graph;
mod mesh;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mesh::Mesh;
use serde_json::Value;
use testkit::prometheus::{Prometheus, promtool};
use testkit::{client, servers, wait};

/// A patch that Envoy rejects: there is no such filter.
const BAD_PATCH: &str = "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\n\
    metadata: {name: bad, namespace: shop}\nspec:\n  configPatches:\n  - applyTo: CLUSTER\n    match: {context: ANY}\n    \
    patch: {operation: ADD, value: {name: bad, type: STATIC, connect_timeout: 1s, \
    transport_socket: {name: nothing, typed_config: {\"@type\": type.googleapis.com/google.protobuf.Duration}}}}\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn file(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Whether a server that these tests need is not available on this machine.
fn is_left_out() -> bool {
    ["etcd", "kube-apiserver", "envoy", "prometheus", "promtool"].iter().any(|part| servers::without(part))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_prometheus_finds_data_for_every_query() {
    if is_left_out() {
        return;
    }
    let mesh = Mesh::start().await;
    let prometheus = Prometheus::start(&mesh.targets()).await;
    graph::requests_are_counted(&mesh, &prometheus).await;
    graph::connections_are_counted(&mesh, &prometheus).await;
    graph::kiali_draws_the_edge(&prometheus).await;
    mesh.server.write("bad.yaml", BAD_PATCH);
    prometheus.has_data("pilot_total_xds_rejects").await;
    mesh.server.remove("bad.yaml");
    mesh.reject_an_object().await;
    own_dashboard(&prometheus).await;
    alert_rules(&prometheus).await;
    upstreams_dashboard(&prometheus).await;
    assert_eq!(prometheus.has_data("endpoint_no_pod").await[0].value(), 1.0);
    formats(&mesh).await;
}

async fn own_dashboard(prometheus: &Prometheus) {
    let dashboard: Value = serde_json::from_str(&file("deploy/monitoring/dashboard.json")).unwrap();
    let queries = queries(&dashboard);
    assert!(queries.len() > 30, "{queries:?}");
    for query in &queries {
        prometheus.has_data(query).await;
    }
}

/// The expressions of all panels.
fn queries(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let nested = panels.flat_map(|panel| panel["panels"].as_array().into_iter().flatten().chain([panel]));
    let targets = nested.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// Alerts have no data while all is well, but each metric that they are about has.
async fn alert_rules(prometheus: &Prometheus) {
    let text = file("deploy/monitoring/alerts.yaml");
    let rules: Value = serde_saphyr::from_str(&text).unwrap();
    let rules = rules["groups"][0]["rules"].as_array().unwrap().clone();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for rule in &rules {
        let expression = rule["expr"].as_str().unwrap();
        prometheus.query(expression).await;
        let words = expression.split(|c| !is_name(c));
        for metric in words.filter(|word| word.starts_with("pilot") || word.starts_with("citadel")) {
            prometheus.has_data(metric).await;
        }
    }
    let (passed, said) =
        promtool(&["check", "rules", &root().join("deploy/monitoring/alerts.yaml").display().to_string()], "");
    assert!(passed, "{said}");
    let (passed, said) =
        promtool(&["test", "rules", &root().join("deploy/monitoring/alerts.test.yaml").display().to_string()], "");
    assert!(passed, "{said}");
    // Every alert has a case.
    let cases = file("deploy/monitoring/alerts.test.yaml");
    for rule in &rules {
        let name = rule["alert"].as_str().unwrap();
        assert!(cases.contains(name), "no case of {name}");
    }
}

/// The rows of the table of queries in docs/compatibility.md: query, and whether we have data.
fn documented_queries() -> Vec<(String, bool)> {
    let page = file("docs/compatibility.md");
    let table = page.split("## Control-plane dashboard").nth(1).unwrap();
    let rows = table.lines().skip_while(|line| !line.starts_with("| `")).take_while(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        (cells[0].trim_matches('`').to_owned(), cells[1] == "yes")
    };
    rows.map(row).collect()
}

async fn upstreams_dashboard(prometheus: &Prometheus) {
    let queries = documented_queries();
    assert!(queries.len() > 20, "{queries:?}");
    for (query, has_data) in queries {
        if has_data {
            prometheus.has_data(&query).await;
        } else {
            assert!(
                prometheus.query(&query).await.is_empty(),
                "{query} has data; docs/compatibility.md says it has none"
            );
        }
    }
}

/// promtool reads both pages. Its advice is followed by our own metrics, except that counters have no `_total`, as
/// upstream's have none. Every metric is documented.
async fn formats(mesh: &Mesh) {
    let server = client::get(mesh.server.monitoring(), "discovery", "/metrics").await.unwrap().body;
    let agent = mesh.front.metrics().await;
    let own = agent.split("\n# TYPE envoy_").next().unwrap().to_owned();
    for page in [&server, &agent] {
        let (passed, said) = promtool(&["check", "metrics", "--extended", "--lint=none"], page);
        assert!(passed, "{said}");
    }
    let documented = file("docs/reference/metrics.md");
    for page in [&server, &own] {
        let names = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
        let rejections = ["cds", "eds", "lds", "rds"].map(|kind| format!("pilot_xds_{kind}_reject"));
        let missing: Vec<&str> = names
            .filter(|name| !rejections.iter().any(|known| known == name) && !documented.contains(&format!("`{name}`")))
            .collect();
        assert!(missing.is_empty(), "not in docs/reference/metrics.md: {missing:?}");
        described(&documented, page);
        let (_, said) = promtool(&["check", "metrics"], page);
        let ours = |line: &&str| line.starts_with("pilotage_") && !line.contains("\"_total\" suffix");
        let advice: BTreeSet<&str> = said.lines().filter(ours).collect();
        assert!(advice.is_empty(), "{advice:?}");
    }
}

/// Types and labels of all series are those of the page of metrics.
fn described(documented: &str, page: &str) {
    let mut types: BTreeMap<&str, &str> = BTreeMap::new();
    for line in page.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            types.insert(name, kind);
        }
        let Some((series, _)) = line.split_once(' ').filter(|_| !line.starts_with('#')) else { continue };
        let (series, labels) = series.split_once('{').unwrap_or((series, ""));
        let parts = ["_bucket", "_sum", "_count"].iter().find_map(|part| series.strip_suffix(part));
        let name = parts.filter(|name| types.get(name) == Some(&"histogram")).unwrap_or(series);
        let row = documented.lines().find(|row| row.starts_with(&format!("| `{name}` |")));
        let Some(cells) = row.map(|row| row.split(" | ").collect::<Vec<_>>()) else { continue };
        assert_eq!(cells[1], types[name], "{line}");
        let names = labels.split("\",").filter_map(|label| Some(label.trim_matches('}').split_once('=')?.0));
        for label in names.filter(|label| *label != "le" && cells[2] != "upstream's") {
            assert!(cells[2].contains(&format!("`{label}`")), "{label} is not in {row:?}");
        }
    }
    assert!(types.len() > 10, "{types:?}");
}

#[test]
fn the_page_has_every_query_of_upstreams_dashboard() {
    // The dashboard is in Istio's module, which is there once istioctl was built.
    let module = Command::new("go")
        .args(["list", "-m", "-f", "{{.Dir}}", "istio.io/istio"])
        .current_dir(root().join("tools/servers/istio"))
        .output();
    let Some(module) = module.ok().filter(|output| output.status.success()) else { return };
    let path = Path::new(String::from_utf8_lossy(&module.stdout).trim())
        .join("manifests/addons/dashboards/pilot-dashboard.gen.json");
    let Ok(text) = fs::read_to_string(path) else { return };
    let documented: BTreeSet<String> = documented_queries().into_iter().map(|(query, _)| query).collect();
    let queries = queries(&serde_json::from_str(&text).unwrap());
    let missing: Vec<&String> = queries.iter().filter(|query| !documented.contains(query.trim())).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Waits until a page of metrics has a line.
async fn line_of(sidecar: &mesh::Sidecar, is_wanted: impl Fn(&str) -> bool) -> String {
    wait::until("a line of metrics", async || {
        let page = sidecar.metrics().await;
        let istio: Vec<&str> = page.lines().filter(|line| line.starts_with("istio_")).collect();
        page.lines().find(|line| is_wanted(line)).map(str::to_owned).ok_or_else(|| istio.join("\n"))
    })
    .await
}

/// Prints what counting costs the agent: CPU for 1,000 requests, and memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn cost_of_request_metrics() {
    const REQUESTS: u32 = 5000;
    let mesh = Mesh::start().await;
    let of = |sidecar: &mesh::Sidecar| (sidecar.process.cpu().unwrap(), sidecar.process.owned_kib().unwrap());
    let (front, cart) = (of(&mesh.front), of(&mesh.cart));
    for _ in 0..REQUESTS {
        client::get(mesh.ports.entrance(), "cart.shop.svc.cluster.local", "/").await.unwrap();
    }
    // Every request was counted.
    line_of(&mesh.front, |line| {
        let count = line.rsplit(' ').next().and_then(|text| text.parse::<f64>().ok()).unwrap_or_default();
        line.starts_with("istio_requests_total{") && count >= f64::from(REQUESTS)
    })
    .await;
    for (name, before, after) in [("front", front, of(&mesh.front)), ("cart", cart, of(&mesh.cart))] {
        let cpu = (after.0 - before.0) * 1000 / REQUESTS;
        println!("{name}: {cpu:?} CPU for 1,000 requests, {} KiB before, {} KiB after", before.1, after.1);
    }
}
