//! Probes and lifecycle hooks of the application go to the agent, which makes the original requests: the kubelet has no
//! certificate of the mesh.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::pod::{self, ContainerList, JsonMap, PROXY};

/// The variable that the agent reads.
pub(crate) const VARIABLE: &str = "ISTIO_KUBE_APP_PROBERS";

const PROBES: &[(&str, &str)] =
    &[("readinessProbe", "readyz"), ("livenessProbe", "livez"), ("startupProbe", "startupz")];
const HOOKS: &[(&str, &str)] = &[("preStop", "prestopz"), ("postStart", "poststartz")];

/// Rewrites the probes of a pod. Returns warnings about probes that are left as they are.
pub(crate) fn rewrite(pod: &mut Value, earlier_proxy: &Value, status_port: u16) -> Vec<String> {
    if pod::proxy(pod).is_none() || status_port == 0 {
        return Vec::new();
    }
    let mut rewriter = Rewriter { status_port, probers: BTreeMap::new(), warnings: Vec::new() };
    for list in [ContainerList::InitContainers, ContainerList::Containers] {
        let containers = pod::containers_mut(pod, list).into_iter().flatten();
        for container in containers.filter_map(Value::as_object_mut) {
            rewriter.container(container);
        }
    }
    if let Some(Ok(Value::Object(known))) = pod::env(earlier_proxy, VARIABLE).map(serde_json::from_str) {
        for (path, prober) in known {
            rewriter.probers.entry(path).or_insert(prober);
        }
    }
    if !rewriter.probers.is_empty()
        && let Some(proxy) = pod::proxy_mut(pod)
    {
        let probers = json!(rewriter.probers).to_string();
        pod::list_at(proxy, "env").retain(|entry| pod::text(entry, "name") != VARIABLE);
        pod::push_env(proxy, VARIABLE, &probers);
    }
    rewriter.warnings
}

struct Rewriter {
    status_port: u16,
    /// Original requests by the path that the agent serves.
    probers: BTreeMap<String, Value>,
    warnings: Vec<String>,
}

impl Rewriter {
    fn container(&mut self, container: &mut JsonMap) {
        let name = container.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        if name == PROXY {
            return;
        }
        let ports = named_ports(container);
        for (field, suffix) in PROBES {
            if let Some(probe) = container.get_mut(*field).and_then(Value::as_object_mut) {
                self.handler(probe, format!("/app-health/{name}/{suffix}"), &ports, &name);
            }
        }
        let Some(lifecycle) = container.get_mut("lifecycle").and_then(Value::as_object_mut) else { return };
        for (field, suffix) in HOOKS {
            if let Some(hook) = lifecycle.get_mut(*field).and_then(Value::as_object_mut) {
                self.handler(hook, format!("/app-lifecycle/{name}/{suffix}"), &ports, &name);
            }
        }
    }

    fn handler(&mut self, handler: &mut JsonMap, path: String, ports: &BTreeMap<String, i64>, container: &str) {
        let is_hook = path.starts_with("/app-lifecycle/");
        let kinds: &[&str] = if is_hook { &["httpGet", "tcpSocket"] } else { &["httpGet", "tcpSocket", "grpc"] };
        let given = |kind: &&&str| handler.get(**kind).is_some_and(Value::is_object);
        let Some(kind) = kinds.iter().find(given).copied() else { return };
        let mut original = handler.get(kind).cloned().unwrap_or_default();
        if is_rewritten(&original, &path, self.status_port) {
            return;
        }
        if let Some(port) = original.get("port").and_then(Value::as_str).map(str::to_owned) {
            let number = ports.get(&port).copied().or_else(|| port.parse().ok());
            let Some(number) = number else {
                self.warnings.push(format!(
                    "container {container} has no port {port:?}; the probe that names it is not rewritten"
                ));
                return;
            };
            original["port"] = number.into();
        }
        let mut prober = json!({ kind: original });
        if let Some(timeout) = handler.get("timeoutSeconds").filter(|timeout| !is_hook && **timeout != json!(0)) {
            prober["timeoutSeconds"] = timeout.clone();
        }
        let mut request = if kind == "httpGet" { handler.get(kind).cloned().unwrap_or_default() } else { json!({}) };
        request["path"] = path.as_str().into();
        request["port"] = self.status_port.into();
        if pod::text(&request, "scheme") == "HTTPS" {
            // From the kubelet to the agent; the agent uses TLS to the application.
            request["scheme"] = "HTTP".into();
        }
        handler.shift_remove(kind);
        handler.insert("httpGet".to_owned(), request);
        self.probers.insert(path, prober);
    }
}

fn is_rewritten(request: &Value, path: &str, status_port: u16) -> bool {
    pod::text(request, "path") == path && request.get("port") == Some(&json!(status_port))
}

fn named_ports(container: &JsonMap) -> BTreeMap<String, i64> {
    let ports = container.get("ports").and_then(Value::as_array).into_iter().flatten();
    let named = ports.filter_map(|port| {
        let number = port.get("containerPort")?.as_i64()?;
        Some((pod::text(port, "name").to_owned(), number))
    });
    named.filter(|(name, _)| !name.is_empty()).collect()
}
