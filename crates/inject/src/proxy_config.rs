//! The ProxyConfig of a workload, and its JSON for the proxy's environment.

use api::istio::mesh::v1alpha1::proxy_config::ClusterName;
use api::istio::mesh::v1alpha1::{MeshConfig, ProxyConfig};
use api::istio::networking::v1beta1::ProxyConfig as ProxyConfigObject;
use model::config::mesh::{default_proxy_config, parse_proxy_config};
use prost::{Message, Name};
use prost_reflect::{DynamicMessage, SerializeOptions};
use serde_json::Value;

use crate::annotations::PROXY_CONFIG;
use crate::pod;

/// A ProxyConfig object with its namespace.
#[derive(Clone, Copy, Debug)]
pub struct NamespacedProxyConfig<'a> {
    /// Namespace of the object.
    pub namespace: &'a str,
    /// Its spec.
    pub spec: &'a ProxyConfigObject,
}

/// The settings of a pod's proxy: mesh < object of the root namespace < object of the namespace < annotation < object
/// with a matching selector. `objects` are sorted by age; on each level the oldest counts.
pub fn effective(
    mesh: &MeshConfig,
    objects: &[NamespacedProxyConfig<'_>],
    pod: &Value,
    namespace: &str,
) -> ProxyConfig {
    let mut config = mesh.default_config.clone().unwrap_or_else(default_proxy_config);
    let of_namespace = |name: &str| {
        let found = objects.iter().find(|object| object.namespace == name && object.spec.selector.is_none());
        found.map(|object| object.spec)
    };
    if let Some(object) = of_namespace(&mesh.root_namespace) {
        apply(&mut config, object);
    }
    if namespace != mesh.root_namespace
        && let Some(object) = of_namespace(namespace)
    {
        apply(&mut config, object);
    }
    if let Some(text) = pod::annotation(pod, PROXY_CONFIG) {
        // A bad annotation has refused the pod before.
        config = parse_proxy_config(&config, text, PROXY_CONFIG).0;
    }
    let labels = pod.pointer("/metadata/labels").unwrap_or(&Value::Null);
    let selects = |object: &&NamespacedProxyConfig<'_>| {
        let selector = object.spec.selector.as_ref().filter(|selector| !selector.match_labels.is_empty());
        let matches = |(key, value): (&String, &String)| labels.get(key).and_then(Value::as_str) == Some(value);
        object.namespace == namespace && selector.is_some_and(|selector| selector.match_labels.iter().all(matches))
    };
    if let Some(object) = objects.iter().find(selects) {
        apply(&mut config, object.spec);
    }
    config
}

fn apply(config: &mut ProxyConfig, object: &ProxyConfigObject) {
    config.concurrency = object.concurrency.or(config.concurrency);
    if let Some(image) = &object.image {
        config.image = Some(image.clone());
    }
    let variables = object.environment_variables.iter().map(|(name, value)| (name.clone(), value.clone()));
    config.proxy_metadata.extend(variables);
}

/// The JSON that the agent reads: fields that have their defaults are left out.
pub(crate) fn without_defaults(config: &ProxyConfig) -> String {
    let defaults = default_proxy_config();
    let mut config = config.clone();
    macro_rules! clear {
        ($($field:ident)*) => {$(
            if config.$field == defaults.$field {
                config.$field = Default::default();
            }
        )*};
    }
    clear!(config_path binary_path control_plane_auth_policy drain_duration termination_drain_duration);
    clear!(discovery_address envoy_metrics_service envoy_access_log_service tracing proxy_admin_port);
    clear!(stat_name_length status_port concurrency);
    if let (Some(ClusterName::ServiceCluster(name)), Some(ClusterName::ServiceCluster(default))) =
        (&config.cluster_name, &defaults.cluster_name)
        && name == default
    {
        config.cluster_name = None;
    }
    message_json(&config).to_string()
}

/// A message of Istio's API as JSON in the form of protobuf.
pub(crate) fn message_json<M: Message + Name>(message: &M) -> Value {
    let bytes = message.encode_to_vec();
    if bytes.is_empty() {
        return Value::Object(serde_json::Map::new());
    }
    let descriptor = api::reflect::istio().get_message_by_name(&M::full_name());
    let dynamic = descriptor.and_then(|descriptor| DynamicMessage::decode(descriptor, bytes.as_slice()).ok());
    let options = SerializeOptions::new().stringify_64_bit_integers(true);
    let json = dynamic.and_then(|d| d.serialize_with_options(serde_json::value::Serializer, &options).ok());
    let mut json = json.unwrap_or_else(|| Value::Object(serde_json::Map::new()));
    // Maps of messages have no order of their own.
    json.sort_all_objects();
    json
}
