//! The pod template of a managed gateway: the template `gateway` of the injector fills in the proxy, so that these pods have
//! what injected gateways have.

use std::collections::{BTreeMap, BTreeSet};

use model::snapshot::gateway_api::managed::ManagedGateway;
use serde_json::{Value, json};

use super::{GatewayInputs, json_map};
use crate::annotations::{OVERRIDES, STATUS, TEMPLATES};
use crate::builtin::{PROXY_ID, without_nulls};
use crate::error::InjectError;
use crate::injection::{InjectionInput, NETWORK_LABEL, inject};
use crate::pod::{self, JsonMap, PROXY};
use crate::proxy_config::effective;
use crate::workload::Workload;

const TEMPLATE: &str = "gateway";
const CLUSTER: &str = "ISTIO_META_CLUSTER_ID";
/// The networks whose endpoints a proxy is sent.
const NETWORK_VIEW: &str = "ISTIO_META_REQUESTED_NETWORK_VIEW";

/// The pod template, complete: the injection webhook leaves it alone.
pub(super) fn template(
    gateway: &ManagedGateway,
    inputs: &GatewayInputs<'_>,
    object_labels: &JsonMap,
) -> Result<Value, InjectError> {
    let pod = bare(gateway, inputs, object_labels);
    let values = inputs.shared.values;
    let named = values.given("global.multiCluster.clusterName");
    let cluster = named.is_none().then(|| (CLUSTER.to_owned(), inputs.cluster.to_owned()));
    // The gateway of a network sends requests to endpoints there: those of others would come back to it.
    let network = gateway.labels.get(NETWORK_LABEL).filter(|network| !network.is_empty());
    let network = network.map(|network| (NETWORK_VIEW.to_owned(), network.to_string()));
    let injected = inject(&InjectionInput {
        shared: inputs.shared,
        pod: &pod,
        workload: Workload {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            name: gateway.deployment.to_string(),
            namespace: gateway.namespace.to_string(),
        },
        proxy_config: effective(inputs.shared.mesh, inputs.proxy_configs, &pod, &gateway.namespace),
        native: false,
        variables: cluster.into_iter().chain(network).collect::<BTreeMap<_, _>>(),
        by_hand: false,
    })?;
    let mut template = injected.pod;
    let annotations = pod::marks_mut(&mut template, "annotations");
    // They describe what a webhook changed.
    for name in [OVERRIDES, STATUS] {
        annotations.shift_remove(name);
    }
    if !gateway.annotations.contains_key(TEMPLATES) {
        annotations.shift_remove(TEMPLATES);
    }
    let metrics = [("path", "/stats/prometheus"), ("port", "15020"), ("scrape", "true")];
    for (name, value) in metrics {
        annotations.entry(format!("prometheus.io/{name}")).or_insert_with(|| value.into());
    }
    if let Some(proxy) = pod::proxy_mut(&mut template) {
        keep_last(pod::list_at(proxy, "env"));
        // Added last: the environment lists the ports of the application only.
        let ports = pod::list_at(proxy, "ports");
        for (name, number) in [("metrics", 15020), ("status-port", 15021)] {
            if !ports.iter().any(|port| port.get("containerPort") == Some(&json!(number))) {
                ports.push(json!({"containerPort": number, "name": name, "protocol": "TCP"}));
            }
        }
    }
    Ok(template)
}

/// The pod before the injector fills it in.
fn bare(gateway: &ManagedGateway, inputs: &GatewayInputs<'_>, object_labels: &JsonMap) -> Value {
    let mut labels = JsonMap::new();
    labels.insert("sidecar.istio.io/inject".to_owned(), "false".into());
    labels.insert("service.istio.io/canonical-name".to_owned(), (&*gateway.deployment).into());
    labels.insert("service.istio.io/canonical-revision".to_owned(), "latest".into());
    labels.extend(object_labels.clone());
    let mut annotations = json_map(&gateway.annotations);
    annotations.entry(TEMPLATES).or_insert_with(|| TEMPLATE.into());
    let mut container = json!({
        "name": PROXY,
        "image": "auto",
        "securityContext": {
            "capabilities": {"drop": ["ALL"]},
            "allowPrivilegeEscalation": false,
            "privileged": false,
            "readOnlyRootFilesystem": true,
            "runAsUser": PROXY_ID,
            "runAsGroup": PROXY_ID,
            "runAsNonRoot": true,
        },
        "startupProbe": {
            "httpGet": {"path": "/healthz/ready", "port": 15021, "scheme": "HTTP"},
            "initialDelaySeconds": 1,
            "periodSeconds": 1,
            "timeoutSeconds": 1,
            "successThreshold": 1,
            "failureThreshold": 30,
        },
    });
    let resources = inputs.shared.values.at("global.proxy.resources").and_then(without_nulls);
    if let (Some(resources), Value::Object(container)) = (resources, &mut container) {
        container.insert("resources".to_owned(), resources);
    }
    json!({
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": {"serviceAccountName": &*gateway.account, "containers": [container]},
    })
}

/// Of entries with the same name the last one counts, and server-side apply accepts only one.
fn keep_last(env: &mut Vec<Value>) {
    let mut names = BTreeSet::new();
    let mut kept: Vec<Value> = Vec::with_capacity(env.len());
    for entry in std::mem::take(env).into_iter().rev() {
        if names.insert(pod::text(&entry, "name").to_owned()) {
            kept.push(entry);
        }
    }
    kept.reverse();
    *env = kept;
}
