//! The objects of a managed gateway: ServiceAccount, Service, Deployment, and on request an autoscaler and a disruption
//! budget. `pod` fills in the proxy, `overlay` merges what users add. Owner references are left to the writer, which knows
//! the Gateway's UID.

mod overlay;
mod pod;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use model::names::Str;
use model::snapshot::gateway_api::managed::{GatewayParameters, ManagedGateway};
use serde_json::{Value, json};
use thiserror::Error;

use crate::error::InjectError;
use crate::injection::MeshInputs;
use crate::pod::JsonMap;
use crate::proxy_config::NamespacedProxyConfig;

const NAME_LABEL: &str = "gateway.networking.k8s.io/gateway-name";
const CLASS_LABEL: &str = "gateway.networking.k8s.io/gateway-class-name";
const MANAGED_LABEL: &str = "gateway.istio.io/managed";

/// Settings that the objects of all gateways share, and the ConfigMaps of one gateway.
#[derive(Clone, Copy, Debug)]
pub struct GatewayInputs<'a> {
    /// Settings of the mesh.
    pub shared: MeshInputs<'a>,
    /// ProxyConfig objects, sorted by age.
    pub proxy_configs: &'a [NamespacedProxyConfig<'a>],
    /// Cluster of the gateway, unless the chart's values name it.
    pub cluster: &'a str,
    /// Controller name of the gateway's class.
    pub controller: &'a str,
    /// Content of the ConfigMap with the defaults of the class.
    pub class_defaults: Option<&'a BTreeMap<String, String>>,
    /// Content of the ConfigMap that `parametersRef` names; `None` if it does not exist.
    pub parameters: Option<&'a BTreeMap<String, String>>,
}

/// Why a gateway cannot be deployed.
#[derive(Debug, Error)]
pub enum GatewayObjectsError {
    /// `parametersRef` is of another kind.
    #[error("parametersRef has kind {0}: only a ConfigMap is supported")]
    UnsupportedParameters(String),
    /// The ConfigMap of `parametersRef` is missing.
    #[error("ConfigMap {0} of parametersRef does not exist")]
    MissingParameters(String),
    /// A key of a ConfigMap that names no object.
    #[error("{key:?} is not an object that can be changed; known are {known}")]
    UnknownOverlay {
        /// The key.
        key: String,
        /// All known keys.
        known: String,
    },
    /// An overlay that cannot be parsed, or that changes what it must not.
    #[error("could not apply {key} of the ConfigMap: {reason}")]
    Overlay {
        /// Its key.
        key: &'static str,
        /// The cause.
        reason: String,
    },
    /// The pod cannot be rendered.
    #[error("could not render the pod: {0}")]
    Pod(#[from] InjectError),
}

/// The wanted objects of a gateway, in the order in which they are written.
pub fn gateway_objects(
    gateway: &ManagedGateway,
    inputs: &GatewayInputs<'_>,
) -> Result<Vec<Value>, GatewayObjectsError> {
    if let GatewayParameters::Unsupported(kind) = &gateway.parameters {
        return Err(GatewayObjectsError::UnsupportedParameters(kind.clone()));
    }
    if let (GatewayParameters::ConfigMap(name), None) = (&gateway.parameters, inputs.parameters) {
        return Err(GatewayObjectsError::MissingParameters(format!("{}/{name}", gateway.namespace)));
    }
    let overlays: Vec<&BTreeMap<String, String>> =
        [inputs.class_defaults, inputs.parameters].into_iter().flatten().collect();
    overlay::check_keys(&overlays)?;
    let labels = object_labels(gateway, inputs.controller);
    let made = [
        (overlay::ACCOUNT, account(gateway, &labels)),
        (overlay::SERVICE, service(gateway, &labels)),
        (overlay::DEPLOYMENT, deployment(gateway, &labels, pod::template(gateway, inputs, &labels)?)),
        (overlay::AUTOSCALER, autoscaler(gateway, &labels)),
        (overlay::DISRUPTION_BUDGET, disruption_budget(gateway, &labels)),
    ];
    let mut objects = Vec::new();
    for (key, object) in made {
        objects.extend(overlay::merged(key, object, &overlays)?);
    }
    Ok(objects)
}

/// Labels of all objects of a gateway.
fn object_labels(gateway: &ManagedGateway, controller: &str) -> JsonMap {
    let mut labels = json_map(&gateway.labels);
    labels.insert(NAME_LABEL.to_owned(), json!(&*gateway.name));
    labels.insert(CLASS_LABEL.to_owned(), json!(&*gateway.class));
    labels.insert(MANAGED_LABEL.to_owned(), json!(controller.replace('/', "-")));
    labels
}

fn json_map(marks: &BTreeMap<Str, Str>) -> JsonMap {
    marks.iter().map(|(key, value)| (key.to_string(), json!(&**value))).collect()
}

fn metadata(gateway: &ManagedGateway, name: &str, labels: &JsonMap) -> Value {
    let mut metadata = json!({"name": name, "namespace": gateway.namespace.as_str(), "labels": labels});
    if !gateway.annotations.is_empty() {
        metadata["annotations"] = Value::Object(json_map(&gateway.annotations));
    }
    metadata
}

fn selector(gateway: &ManagedGateway) -> Value {
    json!({NAME_LABEL: &*gateway.name})
}

fn account(gateway: &ManagedGateway, labels: &JsonMap) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(gateway, &gateway.account, labels)})
}

fn service(gateway: &ManagedGateway, labels: &JsonMap) -> Value {
    let port = |port: &model::snapshot::gateway_api::managed::GatewayPort| json!({"name": port.name, "port": port.number, "protocol": "TCP", "appProtocol": port.app_protocol});
    let ports: Vec<Value> = gateway.ports.iter().map(port).collect();
    let mut spec = json!({
        "type": &*gateway.service_type,
        "ipFamilyPolicy": "PreferDualStack",
        "selector": selector(gateway),
        "ports": ports,
    });
    if let Some(address) = gateway.address.as_ref().filter(|_| &*gateway.service_type == "LoadBalancer") {
        spec["loadBalancerIP"] = json!(&**address);
    }
    let metadata = metadata(gateway, &gateway.deployment, labels);
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
}

fn deployment(gateway: &ManagedGateway, labels: &JsonMap, template: Value) -> Value {
    let spec = json!({"selector": {"matchLabels": selector(gateway)}, "template": template});
    let metadata = metadata(gateway, &gateway.deployment, labels);
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
}

fn autoscaler(gateway: &ManagedGateway, labels: &JsonMap) -> Value {
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": &*gateway.deployment});
    let metadata = metadata(gateway, &gateway.deployment, labels);
    json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata,
        "spec": {"scaleTargetRef": target, "maxReplicas": 1},
    })
}

fn disruption_budget(gateway: &ManagedGateway, labels: &JsonMap) -> Value {
    let metadata = metadata(gateway, &gateway.deployment, labels);
    let spec = json!({"selector": {"matchLabels": selector(gateway)}});
    json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec})
}
