//! Stories of managed gateways: very many at once, and a namespace whose quota is exceeded.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::StoryRow;
use super::shop::{PATIENCE, from_outside};
use crate::cluster::Cluster;

/// Gateways that are created at once.
const MANY: usize = 1000;
/// Longest time until all of them are programmed.
const LIMIT: Duration = Duration::from_secs(60);
/// Prints the problems of the control plane in whose pod it runs.
const PROBLEMS: &[&str] = &["/usr/local/bin/pilot-discovery", "request", "GET", "/debug/problems"];
/// Deployments of gateways that may be written again; each Gateway needs three objects.
const WRITES_EACH: u64 = 6;

/// Creates very many Gateways at once. Their Deployments have no replicas, because one machine could not run the proxies;
/// EndpointSlices take their place. What is measured is the control plane.
pub(super) fn many(cluster: &Cluster) -> Result<Vec<StoryRow>> {
    let names = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "many"}});
    let parameters = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "empty", "namespace": "many"},
        "data": {"deployment": "spec: {replicas: 0}", "service": "spec: {type: ClusterIP}"},
    });
    for object in [names, parameters] {
        cluster.apply(&object.to_string())?;
    }
    let reference = json!({"group": "", "kind": "ConfigMap", "name": "empty"});
    let all: Vec<Value> = (0..MANY).map(|index| gateway("many", &format!("g{index}"), Some(&reference))).collect();
    let slices: Vec<Value> = (0..MANY).map(instance).collect();
    let list = |items: Vec<Value>| json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    cluster.kubectl_with(&["create", "-f", "-"], &list(slices))?;
    let before = writes(cluster)?;
    let start = Instant::now();
    cluster.kubectl_with(&["create", "-f", "-"], &list(all))?;
    let created = start.elapsed();
    cluster.until("all Gateways", Duration::from_secs(300), || match programmed(cluster, "many")? {
        MANY => Ok(()),
        fewer => bail!("{fewer} of {MANY} are programmed"),
    })?;
    let took = start.elapsed();
    let written = writes(cluster)? - before;
    cluster.kubectl(&["delete", "namespace", "many", "--wait=false"])?;
    let note = format!(
        "{MANY} Gateways created in {:.0} s, all programmed after {:.0} s, {written} writes of their objects",
        created.as_secs_f64(),
        took.as_secs_f64()
    );
    // kubectl creates them one after the other; the control plane has its time after the last one.
    if took.saturating_sub(created) > LIMIT || written > WRITES_EACH * MANY as u64 {
        bail!("{note}: over the limit");
    }
    Ok(vec![StoryRow { step: "many Gateways".to_owned(), requests: 0, failures: 0, gap_ms: 0, note }])
}

/// A ready endpoint of a Gateway's Service.
fn instance(index: usize) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("g{index}"), "namespace": "many",
            "labels": {"kubernetes.io/service-name": format!("g{index}-istio")}},
        "endpoints": [{"addresses": ["10.160.250.1"], "conditions": {"ready": true}}],
        "ports": [{"name": "http", "port": 80}, {"name": "status-port", "port": 15021}],
    })
}

/// A quota that allows two of three Deployments: the third Gateway says why it is not programmed, the others serve, and it
/// is deployed when the quota is raised.
pub(super) fn quota(cluster: &Cluster) -> Result<Vec<StoryRow>> {
    let names = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tight"}});
    cluster.apply(&names.to_string())?;
    cluster.apply(&quota_of(2).to_string())?;
    cluster.until("the quota", PATIENCE, || {
        let quota = cluster.get(&["resourcequota", "gateways", "-n", "tight"])?;
        quota["status"]["used"].as_object().context("not counted yet").map(drop)
    })?;
    for name in ["one", "two"] {
        cluster.apply(&gateway("tight", name, None).to_string())?;
    }
    let wait = |expected: usize| {
        cluster.until("programmed Gateways", PATIENCE, || match programmed(cluster, "tight")? {
            number if number == expected => Ok(()),
            number => bail!("{number} of {expected} are programmed"),
        })
    };
    wait(2)?;
    cluster.apply(&gateway("tight", "three", None).to_string())?;
    let message = cluster.until("the reason", PATIENCE, || {
        let object = cluster.get(&["gateway", "three", "-n", "tight"])?;
        let conditions = object["status"]["conditions"].as_array().context("no conditions")?;
        let programmed = conditions.iter().find(|c| c["type"] == "Programmed").context("not programmed yet")?;
        match programmed["status"].as_str() {
            Some("False") => Ok(programmed["message"].as_str().unwrap_or_default().to_owned()),
            other => bail!("Programmed is {other:?}"),
        }
    })?;
    let reason = quota_problem(cluster)?;
    for name in ["one", "two"] {
        is_served(cluster, name)?;
    }
    let start = Instant::now();
    cluster.apply(&quota_of(3).to_string())?;
    wait(3)?;
    let took = start.elapsed().as_secs_f64();
    cluster.kubectl(&["delete", "namespace", "tight", "--wait=false"])?;
    let note = format!("third Gateway: {message:?}, {reason:?}; deployed {took:.1} s after the quota was raised");
    Ok(vec![StoryRow { step: "quota".to_owned(), requests: 0, failures: 0, gap_ms: 0, note }])
}

/// The problem that names the quota.
fn quota_problem(cluster: &Cluster) -> Result<String> {
    cluster.until("a problem that names the quota", PATIENCE, || {
        let page = cluster.kubectl(
            &[&["exec", "-n", "istio-system", "deployment/istiod", "-c", "discovery", "--"], PROBLEMS].concat(),
        )?;
        let all: Value = serde_json::from_str(&page)?;
        let messages = all
            .as_array()
            .into_iter()
            .flatten()
            .filter(|problem| problem["about"].as_str().is_some_and(|about| about.ends_with(" tight/three")));
        let mut messages = messages.filter_map(|problem| problem["message"].as_str());
        let named = messages.find(|message| message.contains("exceeded quota: gateways"));
        named.map(str::to_owned).context("the quota is not named")
    })
}

/// An error unless the proxies of a Gateway answer. Without routes the answer is 404.
fn is_served(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.until("an answer of the Gateway", PATIENCE, || {
        let gateway = cluster.get(&["gateway", name, "-n", "tight"])?;
        let address = gateway["status"]["addresses"][0]["value"].as_str().context("no address")?;
        let counts = from_outside(cluster, &format!("http://{address}/"), &["-total=5", "-expect=404"])?;
        if counts.failures == 0 { Ok(()) } else { bail!("{name}: {}", counts.latest) }
    })
}

fn quota_of(deployments: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gateways", "namespace": "tight"},
        "spec": {"hard": {"count/deployments.apps": deployments.to_string()}},
    })
}

fn gateway(namespace: &str, name: &str, parameters: Option<&Value>) -> Value {
    let mut object = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"gatewayClassName": "istio", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
    });
    if let Some(parameters) = parameters {
        object["spec"]["infrastructure"] = json!({"parametersRef": parameters});
    }
    object
}

/// Number of Gateways of a namespace that are programmed.
fn programmed(cluster: &Cluster, namespace: &str) -> Result<usize> {
    let path = "jsonpath={range .items[*]}{.status.conditions[?(@.type=='Programmed')].status}{'\\n'}{end}";
    let text = cluster.kubectl(&["get", "gateways", "-n", namespace, "-o", path])?;
    Ok(text.lines().filter(|line| *line == "True").count())
}

/// Applied Deployments, Services and ServiceAccounts so far, as the API server counts them.
fn writes(cluster: &Cluster) -> Result<u64> {
    let metrics = cluster.kubectl(&["get", "--raw", "/metrics"])?;
    let is_meant = |line: &&str| {
        let resources = ["deployments", "services", "serviceaccounts"];
        line.starts_with("apiserver_request_total{")
            && line.contains("verb=\"APPLY\"")
            && resources.iter().any(|name| line.contains(&format!("resource=\"{name}\"")))
    };
    let values = metrics.lines().filter(is_meant).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    Ok(values.sum::<f64>() as u64)
}
