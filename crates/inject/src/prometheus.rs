//! Merged metrics: where the application is scraped goes into the proxy's environment, and the pod's annotations point at
//! the agent, which scrapes both.

use serde_json::{Value, json};

use crate::annotations::{MERGE_METRICS, boolean};
use crate::error::InjectError;
use crate::overrides::StrippedPod;
use crate::pod;

const SCRAPE: &str = "prometheus_io_scrape";
const PORT: &str = "prometheus_io_port";
const PATH: &str = "prometheus_io_path";
const TARGETS: &str = "prometheus_istio_io_scrape_targets";
const SECURE_PORT: &str = "prometheus_istio_io_secure_port";
/// The variable that the agent reads.
pub(crate) const VARIABLE: &str = "ISTIO_PROMETHEUS_ANNOTATIONS";

/// Ports of the proxy and its agent, which do not serve metrics of the application.
const RESERVED: &[(u16, &str)] = &[
    (15000, "Envoy's admin port"),
    (15001, "outbound traffic"),
    (15004, "debug pages"),
    (15006, "inbound traffic"),
    (15008, "HBONE"),
    (15020, "the agent's status port"),
    (15021, "health checks"),
    (15053, "DNS"),
    (15090, "Envoy's metrics"),
];

/// Configures merged metrics in a pod whose containers are final.
pub(crate) fn apply(
    pod: &mut Value,
    user: &StrippedPod,
    merge_by_default: bool,
    status_port: i32,
) -> Result<(), InjectError> {
    let by_annotation = pod::annotation(pod, MERGE_METRICS).and_then(boolean);
    if given(pod, SCRAPE).and_then(boolean) == Some(false) || !by_annotation.unwrap_or(merge_by_default) {
        return Ok(());
    }
    let agent_port = status_port.to_string();
    if given(pod, PORT) == Some(&*agent_port) {
        // Injected before, or the user points at the agent: the annotations stay.
        if let Some(known) = pod::env(&user.earlier_proxy, VARIABLE).map(str::to_owned)
            && let Some(proxy) = pod::proxy_mut(pod)
        {
            pod::push_env(proxy, VARIABLE, &known);
        }
        return Ok(());
    }
    let scrape = scrape_config(pod, status_port)?;
    if let (Some(scrape), Some(proxy)) = (scrape, pod::proxy_mut(pod)) {
        pod::push_env(proxy, VARIABLE, &scrape.to_string());
    }
    let annotations = pod::marks_mut(pod, "annotations");
    annotations.retain(|name, _| ![SCRAPE, PORT, PATH, TARGETS].contains(&&*label_name(name)));
    for (name, value) in [
        ("prometheus.io/port", &*agent_port),
        ("prometheus.io/path", "/stats/prometheus"),
        ("prometheus.io/scrape", "true"),
    ] {
        annotations.insert(name.to_owned(), value.into());
    }
    Ok(())
}

/// The annotation of the port that serves merged metrics over mutual TLS, if the proxy's environment names one.
pub(crate) fn apply_secure_port(pod: &mut Value) {
    if given(pod, SECURE_PORT).is_some() {
        return;
    }
    let port = pod::proxy(pod).and_then(|proxy| pod::env(proxy, "ENVOY_SECURE_MERGED_METRICS_PORT"));
    if let Some(port) = port.filter(|port| !port.is_empty() && *port != "0").map(str::to_owned) {
        pod::marks_mut(pod, "annotations").insert("prometheus.istio.io/secure-port".to_owned(), port.into());
    }
}

/// Whether a pod's annotations point at the agent.
pub(crate) fn points_at_agent(pod: &Value, status_port: i32) -> bool {
    given(pod, PORT) == Some(&*status_port.to_string())
}

/// Removes the annotations that point at the agent.
pub(crate) fn clear(pod: &mut Value) {
    let annotations = pod::marks_mut(pod, "annotations");
    annotations.retain(|name, _| ![SCRAPE, PORT, PATH, TARGETS].contains(&&*label_name(name)));
}

fn scrape_config(pod: &Value, status_port: i32) -> Result<Option<Value>, InjectError> {
    let text = |name: &str| given(pod, name).unwrap_or_default();
    let targets = given(pod, TARGETS).map(targets).unwrap_or_default();
    let (mut port, mut path) = (text(PORT), text(PATH));
    if let Some((first_port, first_path)) = targets.first() {
        (port, path) = (first_port, first_path);
    }
    let ports: Vec<&str> =
        if targets.is_empty() { vec![port] } else { targets.iter().map(|(port, _)| *port).collect() };
    for port in ports.into_iter().filter(|port| !port.is_empty()) {
        check_port(port, status_port)?;
    }
    let scrape = text(SCRAPE);
    if scrape.is_empty() && port.is_empty() && path.is_empty() {
        return Ok(None);
    }
    let mut config = json!({"scrape": scrape, "path": path, "port": port});
    if !targets.is_empty() {
        config["targets"] = targets.iter().map(|(port, path)| json!({"port": port, "path": path})).collect();
    }
    Ok(Some(config))
}

/// Ports and paths of `9102:/a, 9103`. A text without a port in one of its entries counts as none.
fn targets(text: &str) -> Vec<(&str, &str)> {
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let split = |entry: &'_ str| -> Option<(usize, usize)> {
        let (port, path) = entry.split_once(':').unwrap_or((entry, ""));
        (!port.trim().is_empty()).then_some((port.len(), path.len()))
    };
    let parsed = entries.map(|entry| {
        split(entry)?;
        let (port, path) = entry.split_once(':').unwrap_or((entry, ""));
        let path = path.trim();
        Some((port.trim(), if path.is_empty() { "/metrics" } else { path }))
    });
    parsed.collect::<Option<Vec<_>>>().unwrap_or_default()
}

fn check_port(port: &str, status_port: i32) -> Result<(), InjectError> {
    let number = port.parse::<u16>().ok().filter(|number| *number > 0);
    let Some(number) = number else {
        return Err(InjectError::Prometheus(format!("{port:?} is not a port number")));
    };
    let used = RESERVED.iter().find(|(reserved, _)| *reserved == number).map(|(_, use_)| *use_);
    let used = used.or((i32::from(number) == status_port).then_some("the agent's status port"));
    match used {
        Some(used) => Err(InjectError::Prometheus(format!("port {number} is used by the proxy for {used}"))),
        None => Ok(()),
    }
}

/// The value of an annotation in any of the spellings that Prometheus takes for the same name.
fn given<'a>(pod: &'a Value, name: &str) -> Option<&'a str> {
    let annotations = pod.pointer("/metadata/annotations")?.as_object()?;
    annotations.iter().find(|(key, _)| label_name(key) == name)?.1.as_str()
}

/// A name as Prometheus writes it into a label.
fn label_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect()
}
