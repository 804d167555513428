//! Stories of pods that come and go: a drained node, flapping readiness, a Job with a native sidecar; and names
//! that only the mesh resolves.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::StoryRow;
use super::shop::{PATIENCE, ending, rolled_out, under_load, with_retries, without_failures};
use crate::cluster::{ChartRelease, Cluster, Load};

const NODE: &str = "node-0";
/// Replicas of which one, 5 %, flaps.
const FLAPPING_OF: usize = 20;
const FLAPPING_TIME: Duration = Duration::from_secs(20);
/// How often the crashing pod must have been restarted.
const CRASHES: i64 = 4;

/// A node is drained while the application, the gateway and the control plane have pods on it.
pub(super) fn drain(cluster: &Cluster) -> Result<Vec<StoryRow>> {
    ChartRelease::with(json!({"minReplicas": 2})).install(cluster)?;
    rolled_out(cluster, "istio-system", "istiod")?;
    let rows = under_load(cluster, "node drained", || {
        let before = pods_on(cluster, NODE)?;
        // The clients have no controller that would start them elsewhere.
        let drain = ["drain", NODE, "--delete-emptydir-data", "--pod-selector=app notin (load-mesh,load-edge)"];
        cluster.kubectl(&[&drain[..], &["--force", "--timeout=180s"]].concat())?;
        for (namespace, deployment) in [("shop", "cart-v1"), ("shop", "cart-v2"), ("shop", "front-istio")] {
            rolled_out(cluster, namespace, deployment)?;
        }
        let left = pods_on(cluster, NODE)?;
        cluster.kubectl(&["uncordon", NODE])?;
        ensure!(before > left && left <= 2, "{left} of {before} pods are still there");
        Ok(format!("{} pods evicted", before - left))
    });
    cluster.kubectl(&["uncordon", NODE])?;
    ChartRelease::default().install(cluster)?;
    without_failures(rows?)
}

fn pods_on(cluster: &Cluster, node: &str) -> Result<usize> {
    let list = cluster.get(&["pods", "-A", &format!("--field-selector=spec.nodeName={node}")])?;
    Ok(list["items"].as_array().map_or(0, Vec::len))
}

/// One of twenty pods becomes ready and unready ten times a second. It serves all the time.
pub(super) fn flapping(cluster: &Cluster) -> Result<Vec<StoryRow>> {
    let steady = cart("cart-steady", FLAPPING_OF - 1, &["serve"], &json!({}));
    let flapping = cart("cart-flapping", 1, &["serve"], &json!({"cluster/flapping": "100ms"}));
    cluster.apply(&steady.to_string())?;
    rolled_out(cluster, "shop", "cart-steady")?;
    let rows = under_load(cluster, "flapping readiness", || {
        let before = cluster.usage("pilot-discovery")?;
        cluster.apply(&flapping.to_string())?;
        let changes = readiness_changes(cluster)?;
        let after = cluster.usage("pilot-discovery")?;
        let cpu = 100.0 * (after.cpu_seconds - before.cpu_seconds) / FLAPPING_TIME.as_secs_f64();
        Ok(format!("1 of {FLAPPING_OF} pods, {changes:.1} changes a second at the API server, {cpu:.0} % of a core"))
    });
    delete_cart(cluster, "cart-flapping")?;
    delete_cart(cluster, "cart-steady")?;
    without_failures(rows?)
}

/// One of four pods ends abruptly a few seconds after each start, and is started again after growing pauses. Until its
/// endpoint is gone, its own proxy answers 503: the user's retries send these requests elsewhere.
pub(super) fn crash_loop(cluster: &Cluster) -> Result<Vec<StoryRow>> {
    let mut crashing = cart("cart-crashing", 1, &["serve", "-linger=0s"], &json!({}));
    // The server ends at once when it gets the signal, with the requests that it has not answered.
    crashing["spec"]["template"]["spec"]["containers"][0]["livenessProbe"] =
        json!({"httpGet": {"path": "/status/500", "port": 8080}, "periodSeconds": 1, "failureThreshold": 3});
    let rows = with_retries(cluster, || {
        under_load(cluster, "crash loop", || {
            cluster.apply(&crashing.to_string())?;
            cluster.until("the crashes", PATIENCE, || {
                let pods = cluster.get(&["pods", "-n", "shop", "-l", "app=cart,version=cart-crashing"])?;
                let containers = pods["items"][0]["status"]["containerStatuses"].as_array().context("not started")?;
                let app = containers.iter().find(|c| c["name"] == "app").context("no container")?;
                match app["restartCount"].as_i64() {
                    Some(count) if count >= CRASHES => Ok(()),
                    count => bail!("{count:?} restarts"),
                }
            })?;
            Ok(format!("one of four pods crashed {CRASHES} times, with retries"))
        })
    });
    delete_cart(cluster, "cart-crashing")?;
    rows
}

/// Changes of the flapping pod's Service in a second, by the versions of its EndpointSlice.
fn readiness_changes(cluster: &Cluster) -> Result<f64> {
    let generation = || -> Result<i64> {
        let slices = cluster.get(&["endpointslices", "-n", "shop", "-l", "kubernetes.io/service-name=cart"])?;
        slices["items"][0]["metadata"]["generation"].as_i64().context("no generation")
    };
    let before = generation()?;
    std::thread::sleep(FLAPPING_TIME);
    let changes = generation()? - before;
    ensure!(changes > FLAPPING_TIME.as_secs() as i64, "readiness changed {changes} times only");
    Ok(changes as f64 / FLAPPING_TIME.as_secs_f64())
}

/// More pods of the service `cart`.
fn cart(name: &str, replicas: usize, args: &[&str], annotations: &Value) -> Value {
    let labels = json!({"app": "cart", "version": name});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": {"terminationGracePeriodSeconds": 20, "containers": [{
                    "name": "app", "image": "mesh/app", "args": args, "env": [{"name": "VERSION", "value": name}],
                    "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1},
                }]},
            },
        },
    })
}

fn delete_cart(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.kubectl(&["delete", "deployment", "-n", "shop", name, "--ignore-not-found", "--wait=true"])?;
    ending(cluster, "shop")
}

/// A Job whose proxy is a native sidecar: its requests use mutual TLS and it completes by itself.
pub(super) fn job(cluster: &Cluster) -> Result<Vec<StoryRow>> {
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "count", "namespace": "shop"},
        "spec": {"backoffLimit": 0, "template": {
            "metadata": {"labels": {"app": "count"}, "annotations": {"sidecar.istio.io/nativeSidecar": "true"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "app", "image": "mesh/app",
                "args": ["load", "-url=http://cart/", "-rate=50", "-total=100"]}]},
        }},
    });
    cluster.apply(&job.to_string())?;
    cluster.kubectl(&["wait", "--for=condition=Complete", "-n", "shop", "job/count", "--timeout=120s"])?;
    let pods = cluster.get(&["pods", "-n", "shop", "-l", "app=count"])?;
    let pod = &pods["items"][0];
    let first = pod["spec"]["initContainers"].as_array().into_iter().flatten();
    let is_native = first.into_iter().any(|c| c["name"] == "istio-proxy" && c["restartPolicy"] == "Always");
    ensure!(is_native, "the proxy is not a native sidecar");
    let name = pod["metadata"]["name"].as_str().context("no name")?;
    let log = cluster.container_log("shop", name, "app");
    let counts: Value = serde_json::from_str(log.lines().last().context("no counts")?)?;
    cluster.kubectl(&["delete", "job", "count", "-n", "shop", "--wait=false"])?;
    let number = |field: &str| counts[field].as_u64().unwrap_or_default();
    let row = StoryRow {
        step: "Job with a native sidecar".to_owned(),
        requests: number("requests"),
        failures: number("failures"),
        gap_ms: u128::from(number("gap_ms")),
        note: "completed by itself".to_owned(),
    };
    without_failures(vec![row])
}

const NAMES: &str = r#"
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: vault, namespace: shop}
spec:
  hosts: [vault.internal]
  location: MESH_EXTERNAL
  resolution: DNS
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: bank.example.com}]
---
apiVersion: v1
kind: Pod
metadata:
  name: asker
  namespace: shop
  labels: {app: asker}
  annotations:
    proxy.istio.io/config: '{holdApplicationUntilProxyStarts: true, proxyMetadata: {ISTIO_META_DNS_CAPTURE: "true", ISTIO_META_DNS_AUTO_ALLOCATE: "true"}}'
spec: {containers: [{name: app, image: mesh/app, args: [load, "-url=http://vault.internal/,http://cart/,http://bank.example.com/", -rate=50]}]}
"#;

/// A client whose name requests its proxy answers reaches a host that no DNS server knows, and also Services and outside names.
pub(super) fn dns(cluster: &Cluster) -> Result<Vec<StoryRow>> {
    let plain = super::shop::from_mesh(cluster, "http://vault.internal/", &["-total=3"])?;
    ensure!(plain.of("codes", "200") == 0, "the name is known without the proxy: {}", plain.all);
    cluster.apply(NAMES)?;
    let load = Load::running(cluster, "shop", "asker")?;
    let before = load.counts()?;
    let after = load.send(300)?;
    load.finish()?;
    cluster.kubectl(&["delete", "serviceentry", "vault", "-n", "shop"])?;
    let row = StoryRow {
        step: "names answered by the proxy".to_owned(),
        requests: after.requests - before.requests,
        failures: after.failures - before.failures,
        gap_ms: after.gap.as_millis(),
        note: format!("answers by version {}", after.all["versions"]),
    };
    ensure!(after.of("versions", "bank") > 100, "{}", after.all);
    without_failures(vec![row])
}
