//! Requests in a cluster: a pod that sends them continuously and counts every failure, and single bursts from such a pod.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::machine::Cluster;

const START: Duration = Duration::from_secs(120);
/// A deployment's container that sends requests.
const CONTAINER: &str = "app";

/// Counts of a client, from its beginning.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadCounts {
    pub(crate) requests: u64,
    pub(crate) failures: u64,
    /// Longest time between two successes.
    pub(crate) gap: Duration,
    /// The newest failure.
    pub(crate) latest: String,
    /// The whole line: counts by status, version and pod.
    pub(crate) all: Value,
}

impl LoadCounts {
    fn parse(line: &str) -> Result<LoadCounts> {
        let all: Value = serde_json::from_str(line).with_context(|| format!("could not read {line:?}"))?;
        let number = |name: &str| all[name].as_u64().unwrap_or_default();
        Ok(LoadCounts {
            requests: number("requests"),
            failures: number("failures"),
            gap: Duration::from_millis(number("gap_ms")),
            latest: all["latest"].as_str().unwrap_or_default().to_owned(),
            all,
        })
    }

    /// Responses by status (`codes`), version (`versions`) or pod (`pods`).
    pub(crate) fn of(&self, section: &str, name: &str) -> u64 {
        self.all[section][name].as_u64().unwrap_or_default()
    }

    /// Requests that the server which answered last had answered before.
    pub(crate) fn served(&self) -> u64 {
        self.all["served"].as_u64().unwrap_or_default()
    }

    /// Pods that have answered.
    pub(crate) fn pods(&self) -> usize {
        self.all["pods"].as_object().map_or(0, serde_json::Map::len)
    }
}

/// A pod that sends requests all the time.
pub(crate) struct Load<'a> {
    cluster: &'a Cluster,
    namespace: String,
    name: String,
}

impl<'a> Load<'a> {
    /// Starts a client with these arguments and waits for its first success.
    pub(crate) fn start(cluster: &'a Cluster, namespace: &str, name: &str, arguments: &[&str]) -> Result<Load<'a>> {
        let arguments: Vec<&str> = ["load"].iter().chain(arguments).copied().collect();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": {"app": name},
                // Without its proxy a client has nothing to send through.
                "annotations": {"proxy.istio.io/config": "{holdApplicationUntilProxyStarts: true}"}},
            "spec": {"containers": [{"name": CONTAINER, "image": "mesh/app", "args": arguments}]},
        });
        cluster.apply(&pod.to_string())?;
        Load::running(cluster, namespace, name)
    }

    /// The client of a pod that was applied; waits for its first success.
    pub(crate) fn running(cluster: &'a Cluster, namespace: &str, name: &str) -> Result<Load<'a>> {
        let load = Load { cluster, namespace: namespace.to_owned(), name: name.to_owned() };
        cluster.until("the first success", START, || {
            let counts = load.counts()?;
            if counts.requests > counts.failures { Ok(()) } else { bail!("{}", counts.latest) }
        })?;
        Ok(load)
    }

    /// Counts so far.
    pub(crate) fn counts(&self) -> Result<LoadCounts> {
        let log = self.cluster.container_log(&self.namespace, &self.name, CONTAINER);
        // The last line may be incomplete.
        let line = log.rsplit('\n').find(|line| line.starts_with('{') && line.ends_with('}'));
        LoadCounts::parse(line.context("the client has not written anything")?)
    }

    /// Waits until this many more requests have been sent.
    pub(crate) fn send(&self, more: u64) -> Result<LoadCounts> {
        let target = self.counts()?.requests + more;
        self.cluster.until("more requests", START, || {
            let counts = self.counts()?;
            if counts.requests >= target { Ok(counts) } else { bail!("{} of {target}", counts.requests) }
        })
    }

    /// Ends the client.
    pub(crate) fn finish(self) -> Result<LoadCounts> {
        let counts = self.send(1)?;
        self.cluster.kubectl(&["delete", "pod", &self.name, "-n", &self.namespace, "--wait=false"])?;
        Ok(counts)
    }
}

/// Sends a burst of requests from a pod of a Deployment and returns their counts.
pub(crate) fn ask(cluster: &Cluster, from: &str, namespace: &str, url: &str, more: &[&str]) -> Result<LoadCounts> {
    let url = format!("-url={url}");
    let fixed = ["exec", "-n", namespace, from, "-c", CONTAINER, "--", "/app/app", "load", "-rate=100", &url];
    let mut args: Vec<&str> = fixed.to_vec();
    if !more.iter().any(|flag| flag.starts_with("-total")) {
        args.push("-total=20");
    }
    args.extend(more);
    let output = cluster.kubectl(&args)?;
    LoadCounts::parse(output.lines().last().unwrap_or_default())
}
