//! The shop that the stories use, and what they share.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::StoryRow;
use crate::cluster::{Cluster, Load, LoadCounts, ask};

pub(super) const PATIENCE: Duration = Duration::from_secs(120);
const SHOP: &str = include_str!("shop.yaml");
const DEPLOYMENTS: &[(&str, &str)] =
    &[("shop", "cart-v1"), ("shop", "cart-v2"), ("shop", "client"), ("plain", "client"), ("world", "bank")];

/// Retries of a user who must not lose a request: in the mesh by a VirtualService, at the gateway by its HTTPRoute.
const RETRIES: &str = r#"
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: retries, namespace: shop}
spec:
  hosts: [cart]
  http:
  - route: [{destination: {host: cart}}]
    retries: {attempts: 5, perTryTimeout: 1s, retryOn: "connect-failure,refused-stream,reset,503"}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: front, namespace: shop}
spec:
  parentRefs: [{name: front}]
  rules: [{backendRefs: [{name: cart, port: 80}], retry: {attempts: 5, codes: [503]}, timeouts: {backendRequest: 1s}}]
"#;

/// Applies the shop and waits until everything of it runs.
pub(super) fn install(cluster: &Cluster) -> Result<()> {
    cluster.apply(SHOP)?;
    for (namespace, deployment) in DEPLOYMENTS {
        rolled_out(cluster, namespace, deployment)?;
    }
    cluster.until("the gateway's Deployment", PATIENCE, || rolled_out(cluster, "shop", "front-istio"))?;
    cluster.until("the shop", PATIENCE, || {
        let got = from_mesh(cluster, "http://cart/", &["-total=5"])?;
        if got.failures == 0 { Ok(()) } else { bail!("{}", got.latest) }
    })
}

/// Waits for a Deployment.
pub(super) fn rolled_out(cluster: &Cluster, namespace: &str, deployment: &str) -> Result<()> {
    cluster.kubectl(&["rollout", "status", "-n", namespace, &format!("deployment/{deployment}"), "--timeout=120s"])?;
    Ok(())
}

/// Restarts a Deployment and waits until all its pods are new and the old ones have ended.
pub(super) fn restart(cluster: &Cluster, namespace: &str, deployment: &str) -> Result<()> {
    cluster.kubectl(&["rollout", "restart", "-n", namespace, &format!("deployment/{deployment}")])?;
    rolled_out(cluster, namespace, deployment)?;
    ending(cluster, namespace)
}

/// Waits until no pod of a namespace is ending.
pub(super) fn ending(cluster: &Cluster, namespace: &str) -> Result<()> {
    cluster.until("the end of old pods", PATIENCE, || {
        let list = cluster.get(&["pods", "-n", namespace])?;
        let mut pods = list["items"].as_array().into_iter().flatten();
        match pods.find(|pod| !pod["metadata"]["deletionTimestamp"].is_null()) {
            None => Ok(()),
            Some(pod) => bail!("{} is ending", pod["metadata"]["name"]),
        }
    })
}

/// Requests from the client in the mesh.
pub(super) fn from_mesh(cluster: &Cluster, url: &str, more: &[&str]) -> Result<LoadCounts> {
    ask(cluster, "deployment/client", "shop", url, more)
}

/// Requests from the client outside the mesh.
pub(super) fn from_outside(cluster: &Cluster, url: &str, more: &[&str]) -> Result<LoadCounts> {
    ask(cluster, "deployment/client", "plain", url, more)
}

/// The address of the shop's gateway.
pub(super) fn front(cluster: &Cluster) -> Result<String> {
    address_of(cluster, "shop", "front")
}

/// The address of a Gateway.
pub(super) fn address_of(cluster: &Cluster, namespace: &str, name: &str) -> Result<String> {
    cluster.until("the gateway's address", PATIENCE, || {
        let gateway = cluster.get(&["gateway", name, "-n", namespace])?;
        let address = gateway["status"]["addresses"][0]["value"].as_str().context("no address yet")?;
        Ok(format!("http://{address}/"))
    })
}

/// Traffic through the mesh and through the gateway, while something happens.
pub(super) fn under_load(
    cluster: &Cluster,
    step: &str,
    happening: impl FnOnce() -> Result<String>,
) -> Result<Vec<StoryRow>> {
    let front = format!("-url={}", front(cluster)?);
    let mesh = Load::start(cluster, "shop", "load-mesh", &["-url=http://cart/", "-rate=50"])?;
    let edge = Load::start(cluster, "plain", "load-edge", &[&front, "-rate=50", "-fresh"])?;
    mesh.send(50)?;
    let note = happening()?;
    mesh.send(100)?;
    let rows = [("in the mesh", mesh.finish()?), ("through the gateway", edge.finish()?)];
    for pod in [("shop", "load-mesh"), ("plain", "load-edge")] {
        cluster.kubectl(&["wait", "--for=delete", "-n", pod.0, &format!("pod/{}", pod.1), "--timeout=60s"])?;
    }
    let rows: Vec<StoryRow> = rows
        .into_iter()
        .map(|(place, counts)| StoryRow {
            step: format!("{step}, {place}"),
            requests: counts.requests,
            failures: counts.failures,
            gap_ms: counts.gap.as_millis(),
            note: if counts.failures == 0 { note.clone() } else { format!("{note}; {}", counts.latest) },
        })
        .collect();
    Ok(rows)
}

/// Plays a story with retries; an error if a request failed all the same.
pub(super) fn with_retries(cluster: &Cluster, story: impl FnOnce() -> Result<Vec<StoryRow>>) -> Result<Vec<StoryRow>> {
    cluster.apply(RETRIES)?;
    let rows = story();
    cluster.kubectl(&["delete", "virtualservice", "retries", "-n", "shop"])?;
    cluster.apply(SHOP)?;
    without_failures(rows?)
}

/// An error if a request failed.
pub(super) fn without_failures(rows: Vec<StoryRow>) -> Result<Vec<StoryRow>> {
    match rows.iter().find(|row| row.failures > 0) {
        None => Ok(rows),
        Some(row) => bail!("{}: {} of {} requests failed: {}", row.step, row.failures, row.requests, row.note),
    }
}
