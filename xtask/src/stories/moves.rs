//! Stories of revisions: namespaces and gateways are moved from one revision to another by their labels and back, under load.
//! The other revision is istiod, or a canary of Pilotage.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::StoryRow;
use super::shop::{PATIENCE, address_of, front, restart, rolled_out};
use crate::cluster::{self, ChartRelease, Cluster, Lifetime, Load, MachineOptions};

const SYSTEM: &str = "istio-system";
/// Namespaces that are moved.
const MOVED: &[&str] = &["one", "two", "three"];
/// The revision of an installation without a name.
const DEFAULT: &str = "default";
/// Namespaces whose client stays in the revision it was started in.
const HOMES: &[&str] = &["home-old", "home-new"];
const TILL: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: till, namespace: NAMESPACE}
spec: {selector: {app: till}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: NAMESPACE}
spec: {mtls: {mode: STRICT}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: till, namespace: NAMESPACE}
spec:
  replicas: 2
  selector: {matchLabels: {app: till}}
  template:
    metadata: {labels: {app: till}}
    spec:
      terminationGracePeriodSeconds: 20
      containers:
      - name: app
        image: mesh/app
        args: [serve]
        env: [{name: VERSION, value: NAMESPACE}]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
"#;
const FRONT: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front, namespace: shop, labels: {istio.io/rev: REVISION}}
spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}]}
---
# It has no label and moves with its namespace.
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: plain, namespace: edge}
spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: front, namespace: one}
spec:
  parentRefs: [{name: front, namespace: shop}, {name: plain, namespace: edge}]
  rules: [{backendRefs: [{name: till, port: 80}]}]
"#;

/// Both control planes with their revisions in a new cluster, istiod first.
pub(super) fn migration(root: &Path, name: &str) -> Result<Vec<StoryRow>> {
    let cluster = Cluster::start(root, &MachineOptions::named(name), Lifetime::Ours)?;
    cluster::gateway_api(&cluster)?;
    cluster::install_istiod(&cluster, "upstream")?;
    release("pilotage").install(&cluster)?;
    moved(&cluster, "upstream", "pilotage")
}

/// A revision of Pilotage next to the default one, to which everything without a label belongs.
pub(super) fn canary(root: &Path, name: &str) -> Result<Vec<StoryRow>> {
    let cluster = Cluster::start(root, &MachineOptions::named(name), Lifetime::Ours)?;
    cluster::gateway_api(&cluster)?;
    ChartRelease::default().install(&cluster)?;
    release("canary").install(&cluster)?;
    moved(&cluster, DEFAULT, "canary")
}

fn release(revision: &str) -> ChartRelease {
    ChartRelease::with(json!({"revision": revision}))
}

/// Moves every namespace and the gateway from the old revision to the new one and back, while clients of both send requests
/// to all of them, and others send through the gateway.
fn moved(cluster: &Cluster, old: &str, new: &str) -> Result<Vec<StoryRow>> {
    prepare(cluster, old, new)?;
    let root = roots(cluster)?;
    let urls = MOVED.iter().map(|namespace| format!("http://till.{namespace}/")).collect::<Vec<_>>().join(",");
    let mut loads = Vec::new();
    for home in HOMES {
        loads.push((*home, Load::start(cluster, home, "load", &[&format!("-url={urls}"), "-rate=50"])?));
    }
    for (client, address) in [("gateway", front(cluster)?), ("plain-gateway", address_of(cluster, "edge", "plain")?)] {
        let url = format!("-url={address}");
        loads.push((client, Load::start(cluster, "plain", client, &[&url, "-rate=50", "-fresh"])?));
    }
    for (_, load) in &loads {
        load.send(50)?;
    }
    let start = Instant::now();
    for (to, from) in [(new, old), (old, new)] {
        for namespace in MOVED {
            move_namespace(cluster, namespace, to).with_context(|| format!("{namespace} from {from} to {to}"))?;
        }
        move_gateway(cluster, to).with_context(|| format!("the gateway from {from} to {to}"))?;
        move_plain_gateway(cluster, to).with_context(|| format!("the gateway without a label from {from} to {to}"))?;
    }
    let took = start.elapsed().as_secs_f64();
    ensure!(roots(cluster)? == root, "the root certificate has changed");
    let note = format!("{} namespaces and two gateways moved and back in {took:.0} s, one root", MOVED.len());
    let mut rows = Vec::new();
    for (client, load) in loads {
        load.send(100)?;
        let counts = load.finish()?;
        ensure!(counts.failures == 0, "{client}: {} of {} failed: {}", counts.failures, counts.requests, counts.latest);
        rows.push(StoryRow {
            step: format!("{old} to {new} and back, client {client}"),
            requests: counts.requests,
            failures: counts.failures,
            gap_ms: counts.gap.as_millis(),
            note: note.clone(),
        });
    }
    Ok(rows)
}

fn prepare(cluster: &Cluster, old: &str, new: &str) -> Result<()> {
    let labelled = MOVED.iter().map(|name| (*name, old)).chain([(HOMES[0], old), (HOMES[1], new)]);
    for (name, revision) in labelled {
        cluster.apply(&namespace(name, &json!({"istio.io/rev": revision})))?;
    }
    for name in ["plain", "shop"] {
        cluster.apply(&namespace(name, &json!({})))?;
    }
    let edge = if old == DEFAULT { json!({}) } else { json!({"istio.io/rev": old}) };
    cluster.apply(&namespace("edge", &edge))?;
    for name in MOVED {
        cluster.apply(&TILL.replace("NAMESPACE", name))?;
    }
    cluster.apply(&FRONT.replace("REVISION", old))?;
    for name in MOVED {
        rolled_out(cluster, name, "till")?;
        on_revision(cluster, name, old)?;
    }
    cluster.until("the gateway's Deployment", PATIENCE, || rolled_out(cluster, "shop", "front-istio"))?;
    cluster.until("the other gateway's Deployment", PATIENCE, || rolled_out(cluster, "edge", "plain-istio"))?;
    // Both control planes know it by now. One that does not own it must not write it.
    let deployment = cluster.get(&["deployment", "plain-istio", "-n", "edge"])?;
    ensure!(deployment["spec"]["template"].to_string().contains(&address(old)), "it is not of {old}");
    ensure!(
        deployment["metadata"]["generation"] == 1,
        "it was deployed {} times",
        deployment["metadata"]["generation"]
    );
    Ok(())
}

fn namespace(name: &str, labels: &Value) -> String {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}).to_string()
}

fn move_namespace(cluster: &Cluster, name: &str, revision: &str) -> Result<()> {
    cluster.kubectl(&["label", "namespace", name, "--overwrite", &format!("istio.io/rev={revision}")])?;
    restart(cluster, name, "till")?;
    on_revision(cluster, name, revision)
}

/// An error unless the proxies of all pods of a namespace connect to this revision.
fn on_revision(cluster: &Cluster, namespace: &str, revision: &str) -> Result<()> {
    let list = cluster.get(&["pods", "-n", namespace, "-l", "app=till"])?;
    let pods = list["items"].as_array().context("no list of pods")?;
    ensure!(!pods.is_empty(), "no pods in {namespace}");
    for pod in pods {
        ensure!(
            pod.to_string().contains(&address(revision)),
            "{} is not injected by {revision}",
            pod["metadata"]["name"]
        );
    }
    Ok(())
}

fn move_gateway(cluster: &Cluster, revision: &str) -> Result<()> {
    let label = format!("istio.io/rev={revision}");
    cluster.kubectl(&["label", "gateway", "front", "-n", "shop", "--overwrite", &label])?;
    deployed_by(cluster, "shop", "front-istio", revision)
}

/// Moves the namespace of the gateway without a label. A namespace without one belongs to the default revision.
fn move_plain_gateway(cluster: &Cluster, revision: &str) -> Result<()> {
    let label = if revision == DEFAULT { "istio.io/rev-".to_owned() } else { format!("istio.io/rev={revision}") };
    cluster.kubectl(&["label", "namespace", "edge", "--overwrite", &label])?;
    deployed_by(cluster, "edge", "plain-istio", revision)
}

/// Waits until the proxies of a gateway are those of a revision.
fn deployed_by(cluster: &Cluster, namespace: &str, name: &str, revision: &str) -> Result<()> {
    cluster.until("the gateway's new Deployment", PATIENCE, || {
        let deployment = cluster.get(&["deployment", name, "-n", namespace])?;
        let template = &deployment["spec"]["template"];
        ensure!(template.to_string().contains(&address(revision)), "it has the old revision");
        Ok(())
    })?;
    rolled_out(cluster, namespace, name)
}

/// Where proxies of a revision connect to.
fn address(revision: &str) -> String {
    let name = if revision == DEFAULT { "istiod".to_owned() } else { format!("istiod-{revision}") };
    format!("{name}.{SYSTEM}.svc:15012")
}

/// The root of the certificate authority, which every moved namespace must have.
fn roots(cluster: &Cluster) -> Result<String> {
    let mut all = Vec::new();
    for namespace in MOVED {
        let map = cluster.get(&["configmap", "istio-ca-root-cert", "-n", namespace])?;
        all.push(map["data"]["root-cert.pem"].as_str().context("no root")?.trim().to_owned());
    }
    all.dedup();
    ensure!(all.len() == 1, "namespaces have {} different roots", all.len());
    all.pop().context("no namespaces")
}
