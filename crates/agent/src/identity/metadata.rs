//! The xDS node of this proxy: metadata with upstream's keys, cluster name and locality.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::istio::mesh::v1alpha1::ProxyConfig;
use api::istio::mesh::v1alpha1::proxy_config::{ClusterName, TracingServiceName};
use model::config::print::message_to_json;
use prost::{Message, Name};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tracing::warn;

use super::ProxyIdentity;
use crate::environment::Environment;

/// The Istio release that this proxy is compatible with. Control planes choose features by it.
const ISTIO_VERSION: &str = "1.31.0";

type Pairs = BTreeMap<String, String>;

/// Differs in every revision of a Deployment, so it is not a property of the workload.
const REVISION_LABEL: &str = "pod-template-hash";
const LOCALITY_LABELS: [&str; 2] = ["topology.istio.io/locality", "istio-locality"];
const APP_LABELS: [&str; 3] = ["app", "app.kubernetes.io/name", "service.istio.io/canonical-name"];
const CANONICAL_LABELS: [&str; 3] = ["service.istio.io/canonical-name", "app.kubernetes.io/name", "app"];
const NO_NAME: &str = "istio-proxy";

/// The node that Envoy sends to the control plane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProxyNode {
    pub id: String,
    pub cluster: String,
    pub metadata: Map<String, Value>,
    /// Region, zone and subzone; empty if unknown.
    pub locality: [String; 3],
    /// Pod annotations, some of which are settings.
    pub annotations: Pairs,
}

/// Input for `node`.
pub struct NodeInput<'a> {
    pub identity: &'a ProxyIdentity,
    pub config: &'a ProxyConfig,
    pub environment: &'a Environment,
    /// From the downward API; `None` if the file does not exist.
    pub labels: Option<Pairs>,
    pub annotations: Option<Pairs>,
    /// `--availabilityZone`: `region/zone/subzone`.
    pub locality: &'a str,
    /// Metadata about the agent itself, such as its ports.
    pub own: Map<String, Value>,
}

/// Builds the node of this proxy.
pub fn node(input: NodeInput<'_>) -> ProxyNode {
    let mut metadata = untyped(input.environment, input.config);
    let label_variable = input.environment.get("ISTIO_METAJSON_LABELS");
    let static_labels: Pairs = label_variable.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let mut labels = static_labels.clone();
    labels.extend(input.labels.unwrap_or_default().into_iter().filter(|(key, _)| key != REVISION_LABEL));
    let annotations = input.annotations.unwrap_or_default();
    let locality = locality(&mut labels, input.locality, input.config);
    let mut set = |key: &str, value: Value| {
        metadata.insert(key.to_owned(), value);
    };
    let pod = |name| input.environment.get(name).map(Value::from);
    let name = input.identity.id.split('.').next().unwrap_or_default();
    let texts = [
        ("NAME", pod("POD_NAME").or_else(|| Some(Value::from(name))).filter(|v| v != "")),
        ("NAMESPACE", Some(Value::from(input.identity.namespace.as_str())).filter(|v| v != "")),
        ("SERVICE_ACCOUNT", pod("SERVICE_ACCOUNT")),
        ("DNS_PROXY_ADDR", pod("DNS_PROXY_ADDR")),
        ("LABELS", pairs(&labels)),
        ("STATIC_LABELS", pairs(&static_labels)),
        ("ANNOTATIONS", pairs(&annotations)),
    ];
    texts.into_iter().for_each(|(key, value)| value.into_iter().for_each(|value| set(key, value)));
    let ips: Vec<String> = input.identity.ips.iter().map(IpAddr::to_string).collect();
    set("INSTANCE_IPS", ips.join(",").into());
    set("PROXY_CONFIG", message_to_json(&ProxyConfig::full_name(), &input.config.encode_to_vec()));
    input.own.into_iter().for_each(|(key, value)| set(&key, value));
    metadata.entry("ISTIO_VERSION").or_insert_with(|| ISTIO_VERSION.into());
    metadata.sort_keys();
    let cluster = cluster_name(input.config, &labels, &metadata);
    ProxyNode { id: input.identity.node_id(), cluster, metadata, locality, annotations }
}

/// Metadata from `ISTIO_META_X=value` (key X) and from the members of each `ISTIO_METAJSON_*` object.
fn untyped(environment: &Environment, config: &ProxyConfig) -> Map<String, Value> {
    let of_config = config.proxy_metadata.iter().filter_map(|(k, v)| Some((k.strip_prefix("ISTIO_META_")?, &**v)));
    let all = of_config.chain(environment.with_prefix("ISTIO_META_"));
    let mut metadata: Map<String, Value> = all.map(|(key, value)| (key.to_owned(), value.into())).collect();
    for (name, text) in environment.with_prefix("ISTIO_METAJSON_") {
        match serde_json::from_str::<Map<String, Value>>(text) {
            Ok(object) => metadata.extend(object),
            Err(error) => warn!(%error, "ignoring $ISTIO_METAJSON_{name}: not a JSON object"),
        }
    }
    metadata
}

fn pairs(pairs: &Pairs) -> Option<Value> {
    (!pairs.is_empty()).then(|| pairs.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))).collect())
}

/// The locality from a label (dots may replace slashes), else from the flag, else from ProxyConfig.
fn locality(labels: &mut Pairs, flag: &str, config: &ProxyConfig) -> [String; 3] {
    let label = LOCALITY_LABELS.iter().find_map(|name| labels.get(*name)).filter(|text| !text.is_empty()).cloned();
    let text = match label {
        Some(label) => {
            let text = if label.contains('/') { label } else { label.replace('.', "/") };
            labels.insert("istio-locality".to_owned(), text.clone());
            text
        }
        None if !flag.is_empty() => flag.to_owned(),
        None => config.availability_zone.clone(),
    };
    let mut parts = text.splitn(3, '/').map(str::to_owned);
    [(); 3].map(|()| parts.next().unwrap_or_default())
}

fn cluster_name(config: &ProxyConfig, labels: &Pairs, metadata: &Map<String, Value>) -> String {
    let meta = |key: &str| metadata.get(key).and_then(Value::as_str).unwrap_or_default();
    let (workload, namespace) = (meta("WORKLOAD_NAME"), meta("NAMESPACE"));
    let canonical = || {
        let workload = if workload.is_empty() { NO_NAME } else { workload };
        CANONICAL_LABELS.iter().find_map(|name| labels.get(*name)).map_or(workload, String::as_str).to_owned()
    };
    let name = match &config.cluster_name {
        Some(ClusterName::ServiceCluster(name)) => name.clone(),
        Some(ClusterName::TracingServiceName(kind)) => match TracingServiceName::try_from(*kind) {
            Ok(TracingServiceName::CanonicalNameOnly) => canonical(),
            Ok(TracingServiceName::CanonicalNameAndNamespace) if !namespace.is_empty() => {
                return format!("{}.{namespace}", canonical());
            }
            Ok(TracingServiceName::CanonicalNameAndNamespace) => canonical(),
            _ => NO_NAME.to_owned(),
        },
        None => NO_NAME.to_owned(),
    };
    if !name.is_empty() && name != NO_NAME {
        return name;
    }
    let app = APP_LABELS.iter().find_map(|name| labels.get(*name)).map(String::as_str);
    match app.or(Some(workload).filter(|name| !name.is_empty())) {
        Some(name) => format!("{name}.{namespace}"),
        None if !namespace.is_empty() => format!("{NO_NAME}.{namespace}"),
        None => NO_NAME.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use api::istio::mesh::v1alpha1::ProxyConfig;
    use api::istio::mesh::v1alpha1::proxy_config::{ClusterName, TracingServiceName};
    use model::config::mesh::default_proxy_config;
    use serde_json::{Map, Value, json};

    use super::{NodeInput, Pairs, ProxyNode, node};
    use crate::environment::Environment;
    use crate::identity::{NodeType, ProxyIdentity};

    fn proxy_identity() -> ProxyIdentity {
        let ips = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        let (id, domain) = ("a-1.shop".to_owned(), "shop.svc.cluster.local".to_owned());
        ProxyIdentity { kind: NodeType::Sidecar, ips, id, domain, namespace: "shop".to_owned() }
    }

    fn of(config: &ProxyConfig, env: &[(&str, &str)], labels: &[(&str, &str)], locality: &str) -> ProxyNode {
        let labels: Pairs = labels.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let environment: Environment = env.iter().copied().collect();
        let input = NodeInput {
            identity: &proxy_identity(),
            config,
            environment: &environment,
            labels: Some(labels),
            annotations: None,
            locality,
            own: Map::from_iter([("ENVOY_STATUS_PORT".to_owned(), Value::from(15021))]),
        };
        node(input)
    }

    #[test]
    fn metadata_is_merged_from_all_sources() {
        let mut config = default_proxy_config();
        config.proxy_metadata.insert("ISTIO_META_MESH_ID".to_owned(), "m".to_owned());
        config.proxy_metadata.insert("OTHER".to_owned(), "x".to_owned());
        let env = [
            ("ISTIO_META_CLUSTER_ID", "Kubernetes"),
            ("ISTIO_METAJSON_LABELS", r#"{"app":"a","tier":"1"}"#),
            ("ISTIO_METAJSON_BAD", "{"),
            ("SERVICE_ACCOUNT", "default"),
        ];
        let node = of(&config, &env, &[("tier", "2"), ("pod-template-hash", "x")], "");
        let expected = [
            ("NAME", json!("a-1")),
            ("NAMESPACE", json!("shop")),
            ("CLUSTER_ID", json!("Kubernetes")),
            ("MESH_ID", json!("m")),
            ("app", json!("a")),
            ("LABELS", json!({"app": "a", "tier": "2"})),
            ("STATIC_LABELS", json!({"app": "a", "tier": "1"})),
            ("INSTANCE_IPS", json!("10.0.0.1,fd00::1")),
            ("ENVOY_STATUS_PORT", json!(15021)),
            ("SERVICE_ACCOUNT", json!("default")),
        ];
        for (key, value) in expected {
            assert_eq!(node.metadata.get(key), Some(&value), "{key}");
        }
        assert_eq!(node.metadata["PROXY_CONFIG"]["drainDuration"], "45s");
        assert!(!node.metadata.contains_key("OTHER") && !node.metadata.contains_key("ANNOTATIONS"));
        assert_eq!((&*node.id, &*node.cluster), ("sidecar~10.0.0.1~a-1.shop~shop.svc.cluster.local", "a.shop"));
    }

    #[test]
    fn locality_comes_from_label_or_flag() {
        let config = default_proxy_config();
        assert_eq!(of(&config, &[], &[("istio-locality", "r.z.s")], "x/y").locality, ["r", "z", "s"]);
        assert_eq!(of(&config, &[], &[("topology.istio.io/locality", "r/z")], "").locality, ["r", "z", ""]);
        assert_eq!(of(&config, &[], &[], "x/y/z/more").locality, ["x", "y", "z/more"]);
    }

    #[test]
    fn cluster_name_follows_upstreams_rules() {
        let mut config = default_proxy_config();
        let mut check = |name: Option<ClusterName>, env: &[(&str, &str)], labels: &[(&str, &str)], expected: &str| {
            config.cluster_name = name;
            assert_eq!(of(&config, env, labels, "").cluster, expected);
        };
        let tracing = |kind: TracingServiceName| Some(ClusterName::TracingServiceName(kind.into()));
        let service = |name: &str| Some(ClusterName::ServiceCluster(name.to_owned()));
        check(service("mine"), &[], &[("app", "a")], "mine");
        check(service("istio-proxy"), &[], &[("app", "a")], "a.shop");
        check(service("istio-proxy"), &[("ISTIO_META_WORKLOAD_NAME", "w")], &[], "w.shop");
        check(None, &[], &[], "istio-proxy.shop");
        let canonical = [("service.istio.io/canonical-name", "c"), ("app", "a")];
        check(tracing(TracingServiceName::CanonicalNameOnly), &[], &canonical, "c");
        check(tracing(TracingServiceName::CanonicalNameAndNamespace), &[], &canonical, "c.shop");
        check(tracing(TracingServiceName::AppLabelAndNamespace), &[], &canonical, "a.shop");
    }
}
