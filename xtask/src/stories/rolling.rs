//! Stories of replacement: the application, the gateway and the control plane are replaced or killed under load.

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::StoryRow;
use super::shop::{PATIENCE, restart, rolled_out, under_load, with_retries, without_failures};
use crate::cluster::{ChartRelease, Cluster};

/// Replicas of the control plane while they are killed one after the other.
const REPLICAS: usize = 3;

/// A rolling update of both versions of the application.
pub(super) fn application(cluster: &Cluster) -> Result<Vec<StoryRow>> {
    without_failures(under_load(cluster, "rolling update", || {
        restart(cluster, "shop", "cart-v1")?;
        restart(cluster, "shop", "cart-v2")?;
        Ok("all pods replaced".to_owned())
    })?)
}

/// A rolling update of the gateway's proxies, which Pilotage deployed.
pub(super) fn gateway(cluster: &Cluster) -> Result<Vec<StoryRow>> {
    without_failures(under_load(cluster, "rolling update", || {
        restart(cluster, "shop", "front-istio")?;
        Ok("all proxies replaced".to_owned())
    })?)
}

/// Every replica of the control plane is killed in turn while configuration changes, then all are replaced.
pub(super) fn control_plane(cluster: &Cluster) -> Result<Vec<StoryRow>> {
    ChartRelease::with(json!({"minReplicas": REPLICAS})).install(cluster)?;
    cluster.until("the replicas", PATIENCE, || {
        let ready = pods(cluster)?.len();
        if ready == REPLICAS { Ok(()) } else { bail!("{ready} are ready") }
    })?;
    let rows = under_load(cluster, "control plane", || {
        for (turn, pod) in pods(cluster)?.iter().enumerate() {
            cluster.kubectl(&["delete", "pod", "-n", "istio-system", pod, "--force", "--grace-period=0"])?;
            // A change that every proxy has to receive from whatever replica is left.
            let labels = format!("turn={turn}");
            cluster.kubectl(&["label", "service", "cart", "-n", "shop", "--overwrite", &labels])?;
            rolled_out(cluster, "istio-system", "istiod")?;
        }
        restart(cluster, "istio-system", "istiod")?;
        Ok(format!("{REPLICAS} replicas killed in turn, then all replaced"))
    })?;
    ChartRelease::default().install(cluster)?;
    without_failures(rows)
}

/// Pods of the control plane that are ready.
fn pods(cluster: &Cluster) -> Result<Vec<String>> {
    let list = cluster.get(&["pods", "-n", "istio-system", "-l", "app=istiod"])?;
    let is_ready = |pod: &&serde_json::Value| {
        let conditions = pod["status"]["conditions"].as_array();
        let ready = conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True");
        ready && pod["metadata"]["deletionTimestamp"].is_null()
    };
    let items = list["items"].as_array().context("no list of pods")?;
    Ok(items.iter().filter(is_ready).filter_map(|pod| Some(pod["metadata"]["name"].as_str()?.to_owned())).collect())
}

/// One pod of the application is killed without notice. Requests in flight to it get no response: the user's retries send
/// them to another pod.
pub(super) fn kill(cluster: &Cluster) -> Result<Vec<StoryRow>> {
    let killing = || {
        let list = cluster.get(&["pods", "-n", "shop", "-l", "app=cart,version=v1"])?;
        let name = list["items"][0]["metadata"]["name"].as_str().context("no pod")?;
        cluster.kubectl(&["delete", "pod", "-n", "shop", name, "--force", "--grace-period=0"])?;
        rolled_out(cluster, "shop", "cart-v1")?;
        Ok("one of three pods killed, with retries".to_owned())
    };
    with_retries(cluster, || under_load(cluster, "kill -9", killing))
}
