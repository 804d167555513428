//! Two clusters on one network: each has its own API server and control plane, both trust the same root, and each control
//! plane reads the other's endpoints. Local pods disappear, and the other API server stops answering.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::StoryRow;
use super::shop::{PATIENCE, rolled_out};
use crate::cluster::{self, ChartRelease, Cluster, Lifetime, Load, MachineOptions};

const SYSTEM: &str = "istio-system";
/// How long the other API server does not answer.
const OUTAGE: Duration = Duration::from_secs(20);
const DOCUMENTS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: pair, labels: {istio-injection: enabled}}
---
apiVersion: v1
kind: Service
metadata: {name: till, namespace: pair}
spec: {selector: {app: till}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: pair}
spec: {mtls: {mode: STRICT}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: till, namespace: pair}
spec:
  selector: {matchLabels: {app: till}}
  template:
    metadata: {labels: {app: till}}
    spec:
      terminationGracePeriodSeconds: 20
      containers:
      - name: app
        image: mesh/app
        args: [serve]
        env: [{name: VERSION, value: NAME}]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
"#;

/// Starts the second cluster, connects both, and sends requests while parts of them fail.
pub(super) fn run(east: &Cluster) -> Result<Vec<StoryRow>> {
    release("east").install(east)?;
    let west_name = format!("{}-west", east.name());
    let options = MachineOptions { block: 1, peer: Some(east.name()), ..MachineOptions::named(&west_name) };
    let west = Cluster::start(east.root(), &options, Lifetime::Ours)?;
    cluster::gateway_api(&west)?;
    copy_root(east, &west)?;
    release("west").install(&west)?;
    for (place, name) in [(east, "east"), (&west, "west")] {
        place.apply(&DOCUMENTS.replace("NAME", name))?;
        rolled_out(place, "pair", "till")?;
    }
    connect(&west, "west", east)?;
    connect(east, "east", &west)?;
    let load = Load::start(east, "pair", "load-pair", &["-url=http://till/", "-rate=50"])?;
    east.until("answers of both clusters", PATIENCE, || {
        let counts = load.counts()?;
        match (counts.of("versions", "east"), counts.of("versions", "west")) {
            (1.., 1..) => Ok(()),
            _ => bail!("{}", counts.all),
        }
    })?;
    let mut rows = Vec::new();
    let mut last = load.counts()?;
    let mut row = |step: &str, note: String| -> Result<()> {
        let now = load.send(50)?;
        rows.push(StoryRow {
            step: step.to_owned(),
            requests: now.requests - last.requests,
            failures: now.failures - last.failures,
            gap_ms: now.gap.as_millis(),
            note,
        });
        last = now;
        Ok(())
    };
    row("both clusters answer", last_versions(&load)?)?;
    scale(east, 0)?;
    row("no pods in the client's cluster", "the other cluster answers".to_owned())?;
    scale(east, 1)?;
    rolled_out(east, "pair", "till")?;
    row("pods are back", last_versions(&load)?)?;
    west.signal_server("kube-apiserver", "STOP")?;
    std::thread::sleep(OUTAGE);
    west.signal_server("kube-apiserver", "CONT")?;
    row("API server of the other cluster stopped", format!("for {} s", OUTAGE.as_secs()))?;
    connect(&west, "west", east)?;
    row("remote secret replaced", last_versions(&load)?)?;
    let all = load.finish()?;
    east.kubectl(&["delete", "secret", "-n", SYSTEM, "remote-west"])?;
    east.kubectl(&["delete", "namespace", "pair", "--wait=false"])?;
    match all.failures {
        0 => Ok(rows),
        failures => bail!("{failures} of {} requests failed: {}; {rows:?}", all.requests, all.latest),
    }
}

fn release(name: &str) -> ChartRelease {
    let injection = json!({"values": {"global": {"multiCluster": {"clusterName": name}}}});
    ChartRelease::with(json!({"clusterID": name, "injection": injection}))
}

fn last_versions(load: &Load<'_>) -> Result<String> {
    Ok(format!("answers so far {}", load.counts()?.all["versions"]))
}

fn scale(cluster: &Cluster, replicas: u32) -> Result<()> {
    cluster.kubectl(&["scale", "-n", "pair", "deployment/till", &format!("--replicas={replicas}")])?;
    cluster.until("the number of pods", PATIENCE, || {
        let list = cluster.get(&["pods", "-n", "pair", "-l", "app=till"])?;
        match list["items"].as_array().map(Vec::len) {
            Some(number) if number == replicas as usize => Ok(()),
            number => bail!("{number:?} pods"),
        }
    })
}

/// Both control planes sign with the same root.
fn copy_root(from: &Cluster, to: &Cluster) -> Result<()> {
    let root = from.get(&["secret", "istio-ca-secret", "-n", SYSTEM])?;
    to.kubectl(&["create", "namespace", SYSTEM])?;
    let copy = json!({
        "apiVersion": "v1", "kind": "Secret", "type": root["type"], "data": root["data"],
        "metadata": {"name": "istio-ca-secret", "namespace": SYSTEM},
    });
    to.apply(&copy.to_string())
}

/// Lets the control plane of `reader` read the cluster `remote`.
fn connect(remote: &Cluster, name: &str, reader: &Cluster) -> Result<()> {
    let mut config: Value = serde_json::from_str(&remote.kubectl(&["config", "view", "--raw", "-o", "json"])?)?;
    let token = remote.kubectl(&["create", "token", "istiod", "-n", SYSTEM, "--duration=2h"])?;
    let nodes = remote.get(&["nodes"])?;
    let address = nodes["items"][0]["status"]["addresses"][0]["address"].as_str().context("no address of a node")?;
    let server = &mut config["clusters"][0]["cluster"]["server"];
    let port = server.as_str().and_then(|text| text.rsplit(':').next()).context("no port of the API server")?;
    *server = format!("https://{address}:{port}").into();
    config["users"][0]["user"] = json!({"token": token.trim()});
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": format!("remote-{name}"), "namespace": SYSTEM, "labels": {"istio/multiCluster": "true"}},
        "stringData": {name: config.to_string()},
    });
    reader.apply(&secret.to_string())
}
