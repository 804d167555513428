//! Envoy's verdict on a whole configuration: `envoy --mode validate` with the resources of a dump as static ones. Nothing is
//! bound or contacted.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::process::Command;
use tokio::time::timeout;

use crate::private_envoy::EnvoyError;

/// A large configuration takes seconds.
const LIMIT: Duration = Duration::from_secs(120);
/// Clusters that the agent's bootstrap adds and resources refer to.
const OF_AGENT: [&str; 4] = ["sds-grpc", "xds-grpc", "prometheus_stats", "agent"];

/// Asks an Envoy whether it accepts the resources of a dump. The inner error is Envoy's message.
pub async fn validate(program: &Path, dump: &Value) -> Result<Result<(), String>, EnvoyError> {
    let folder = tempfile::tempdir().map_err(EnvoyError::Folder)?;
    let file = folder.path().join("envoy.json");
    std::fs::write(&file, bootstrap(dump).to_string()).map_err(EnvoyError::Folder)?;
    let output = Command::new(program)
        .args(["--mode", "validate", "--log-level", "error", "--config-path"])
        .arg(&file)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(LIMIT, output).await.map_err(|_| EnvoyError::NoAnswer(LIMIT))?;
    let output = output.map_err(|cause| EnvoyError::Start { program: program.display().to_string(), cause })?;
    if output.status.success() {
        return Ok(Ok(()));
    }
    Ok(Err(reason(&String::from_utf8_lossy(&output.stderr))))
}

/// The message among the lines of Envoy's log.
fn reason(log: &str) -> String {
    let line = log.lines().rev().find(|line| line.contains("error") || line.contains("rror ")).unwrap_or(log);
    let text = line.split("] ").last().unwrap_or(line).trim();
    text.to_owned()
}

/// A bootstrap with all resources. Route tables and load assignments are put where they are referred to.
fn bootstrap(dump: &Value) -> Value {
    let mut found = Resources::default();
    found.collect(dump, 8);
    let Resources { clusters, listeners, routes, endpoints } = found;
    let mut clusters: Vec<Value> = clusters.into_values().map(|cluster| with_endpoints(cluster, &endpoints)).collect();
    let known: Vec<String> = clusters.iter().map(|cluster| text(cluster, "name")).collect();
    let missing = OF_AGENT.iter().filter(|name| !known.iter().any(|known| known == *name));
    clusters.extend(missing.map(|name| json!({"name": name, "type": "STATIC", "connectTimeout": "1s"})));
    let listeners: Vec<Value> = listeners.into_iter().map(|listener| with_routes(listener, &routes)).collect();
    json!({
        "node": {"id": "plan", "cluster": "plan"},
        "dynamicResources": {"adsConfig": {
            "apiType": "GRPC",
            "transportApiVersion": "V3",
            "grpcServices": [{"envoyGrpc": {"clusterName": "xds-grpc"}}],
        }},
        "staticResources": {"listeners": listeners, "clusters": clusters},
    })
}

#[derive(Default)]
struct Resources {
    clusters: BTreeMap<String, Value>,
    listeners: Vec<Value>,
    routes: BTreeMap<String, Value>,
    endpoints: BTreeMap<String, Value>,
}

impl Resources {
    fn collect(&mut self, value: &Value, depth: usize) {
        if depth == 0 {
            return;
        }
        let kind = value.get("@type").and_then(Value::as_str).unwrap_or_default();
        let plain = || without_type(value);
        match kind.rsplit('.').next().unwrap_or_default() {
            "Cluster" => _ = self.clusters.insert(text(value, "name"), plain()),
            "Listener" => self.listeners.push(plain()),
            "RouteConfiguration" => _ = self.routes.insert(text(value, "name"), plain()),
            "ClusterLoadAssignment" => _ = self.endpoints.insert(text(value, "clusterName"), plain()),
            _ => match value {
                Value::Object(fields) => fields.values().for_each(|field| self.collect(field, depth - 1)),
                Value::Array(items) => items.iter().for_each(|item| self.collect(item, depth - 1)),
                _ => {}
            },
        }
    }
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_default().to_owned()
}

fn without_type(value: &Value) -> Value {
    let fields = value.as_object().into_iter().flatten().filter(|(key, _)| *key != "@type");
    fields.map(|(key, value)| (key.clone(), value.clone())).collect::<Map<_, _>>().into()
}

/// A discovered cluster with its load assignment.
fn with_endpoints(mut cluster: Value, endpoints: &BTreeMap<String, Value>) -> Value {
    if cluster["type"] != "EDS" {
        return cluster;
    }
    let name = cluster["edsClusterConfig"]["serviceName"].as_str().unwrap_or_default();
    let name = if name.is_empty() { text(&cluster, "name") } else { name.to_owned() };
    if let Some(fields) = cluster.as_object_mut() {
        fields.remove("edsClusterConfig");
        let none = json!({"clusterName": name});
        fields.insert("type".to_owned(), json!("STATIC"));
        fields.insert("loadAssignment".to_owned(), endpoints.get(&name).cloned().unwrap_or(none));
    }
    cluster
}

/// A listener with the route tables that it refers to.
fn with_routes(mut value: Value, routes: &BTreeMap<String, Value>) -> Value {
    match &mut value {
        Value::Object(fields) => {
            let name = fields.get("rds").map(|rds| text(rds, "routeConfigName"));
            if let Some(table) = name.as_ref().and_then(|name| routes.get(name)) {
                fields.remove("rds");
                fields.insert("routeConfig".to_owned(), table.clone());
            }
            fields.values_mut().for_each(|field| *field = with_routes(field.take(), routes));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = with_routes(item.take(), routes)),
        _ => {}
    }
    value
}
