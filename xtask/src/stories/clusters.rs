//! Two clusters on one network: each has its own API server and control plane, both trust the same root, and each
//! control plane reads the other's endpoints. Local pods disappear, the other API server stops answering, and its token is
//! replaced.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::StoryRow;
use super::shop::{PATIENCE, rolled_out};
use crate::cluster::{self, ChartRelease, Cluster, Lifetime, Load, LoadCounts, MachineOptions};

const SYSTEM: &str = "istio-system";
/// How long the other API server does not answer.
const OUTAGE: Duration = Duration::from_secs(60);
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

/// An account that may read what the control plane reads.
const ACCOUNT: &str = r#"
apiVersion: v1
kind: ServiceAccount
metadata: {name: ACCOUNT, namespace: istio-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: ACCOUNT}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: istiod-read-istio-system}
subjects: [{kind: ServiceAccount, name: ACCOUNT, namespace: istio-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: ACCOUNT-secrets}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: istiod-secrets-istio-system}
subjects: [{kind: ServiceAccount, name: ACCOUNT, namespace: istio-system}]
"#;

/// Starts both clusters, connects them, and sends requests while parts of them fail.
pub(super) fn run(root: &Path, name: &str) -> Result<Vec<StoryRow>> {
    let east = Cluster::start(root, &MachineOptions::named(&format!("{name}-east")), Lifetime::Ours)?;
    let options = MachineOptions::named(&format!("{name}-west"));
    let west = Cluster::start(root, &MachineOptions { block: 1, peer: Some(east.name()), ..options }, Lifetime::Ours)?;
    for (place, name) in [(&east, "east"), (&west, "west")] {
        cluster::gateway_api(place)?;
        if place.name() == west.name() {
            copy_root(&east, &west)?;
        }
        release(name).install(place)?;
        place.apply(&DOCUMENTS.replace("NAME", name))?;
        rolled_out(place, "pair", "till")?;
    }
    connect(&west, "west", &east, "reader-1")?;
    connect(&east, "east", &west, "reader-1")?;
    let load = Load::start(&east, "pair", "load-pair", &["-url=http://till/", "-rate=50"])?;
    let mut steps = ClusterSteps { load: &load, last: load.counts()?, rows: Vec::new() };
    answers_of_both(&east, &load)?;
    steps.add("both clusters answer", "")?;
    fail_over(&east, &west, &mut steps)?;
    west.signal_server("kube-apiserver", "STOP")?;
    std::thread::sleep(OUTAGE);
    west.signal_server("kube-apiserver", "CONT")?;
    steps.add("API server of the other cluster stopped", &format!("for {} s; ", OUTAGE.as_secs()))?;
    rotate(&east, &west, &mut steps)?;
    let rows = steps.rows;
    let all = load.finish()?;
    match all.failures {
        0 => Ok(rows),
        failures => bail!("{failures} of {} requests failed: {}; {rows:?}", all.requests, all.latest),
    }
}

/// The rows so far, and the counts at the end of the last one.
struct ClusterSteps<'a> {
    load: &'a Load<'a>,
    last: LoadCounts,
    rows: Vec<StoryRow>,
}

impl ClusterSteps<'_> {
    /// Adds a row for the requests since the last one; it ends with the answers of both clusters in it.
    fn add(&mut self, step: &str, note: &str) -> Result<()> {
        let now = self.load.send(50)?;
        let of = |cluster: &str| now.of("versions", cluster) - self.last.of("versions", cluster);
        self.rows.push(StoryRow {
            step: step.to_owned(),
            requests: now.requests - self.last.requests,
            failures: now.failures - self.last.failures,
            gap_ms: now.gap.as_millis(),
            note: format!("{note}answers of east {}, of west {}", of("east"), of("west")),
        });
        self.last = now;
        Ok(())
    }
}

fn answers_of_both(east: &Cluster, load: &Load<'_>) -> Result<()> {
    east.until("answers of both clusters", PATIENCE, || {
        let counts = load.counts()?;
        match (counts.of("versions", "east"), counts.of("versions", "west")) {
            (1.., 1..) => Ok(()),
            _ => bail!("{}", counts.all),
        }
    })
}

/// The pods of the client's cluster disappear and come back.
fn fail_over(east: &Cluster, west: &Cluster, steps: &mut ClusterSteps<'_>) -> Result<()> {
    scale(east, 0)?;
    steps.add("no pods in the client's cluster", "")?;
    scale(east, 1)?;
    rolled_out(east, "pair", "till")?;
    steps.add("pods are back", "")?;
    // The other cluster is still needed by what follows.
    rolled_out(west, "pair", "till")
}

/// The remote secret gets another account's token; the old account is deleted, so its token is dead. What changes in the other
/// cluster afterwards must still arrive.
fn rotate(east: &Cluster, west: &Cluster, steps: &mut ClusterSteps<'_>) -> Result<()> {
    connect(west, "west", east, "reader-2")?;
    west.kubectl(&["delete", "serviceaccount", "reader-1", "-n", SYSTEM])?;
    steps.add("remote secret rotated, the old token dead", "")?;
    let before = steps.load.counts()?;
    west.kubectl(&["scale", "-n", "pair", "deployment/till", "--replicas=2"])?;
    rolled_out(west, "pair", "till")?;
    east.until("answers of a new pod of the other cluster", PATIENCE, || {
        let counts = steps.load.counts()?;
        if counts.pods() > before.pods() { Ok(()) } else { bail!("{} pods answered", counts.pods()) }
    })?;
    steps.add("a new pod of the other cluster", "")
}

fn release(name: &str) -> ChartRelease {
    let global = json!({"multiCluster": {"clusterName": name}});
    ChartRelease::with(json!({"clusterID": name, "injection": {"values": {"global": global}}}))
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

/// Lets the control plane of `reader` read the cluster `remote`, with the token of an account that is made for it.
fn connect(remote: &Cluster, name: &str, reader: &Cluster, account: &str) -> Result<()> {
    remote.apply(&ACCOUNT.replace("ACCOUNT", account))?;
    let mut config: Value = serde_json::from_str(&remote.kubectl(&["config", "view", "--raw", "-o", "json"])?)?;
    let token = remote.kubectl(&["create", "token", account, "-n", SYSTEM, "--duration=2h"])?;
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
