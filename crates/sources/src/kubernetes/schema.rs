//! The fields of Kubernetes objects that are read, for decoding. Most values live only until they are joined.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{ApiResource, DynamicResourceScope, Resource};
use model::labels::Labels;
use model::names::Str;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// An object of any kind that is read.
#[derive(Clone, Debug)]
pub enum ClusterObject {
    Service(Box<ServiceObject>),
    EndpointSlice(EndpointSlice),
    Pod(Box<PodObject>),
    Node(NodeObject),
    Namespace(NamespaceObject),
    /// A MutatingWebhookConfiguration that defines a tag of a revision.
    RevisionTag(WebhookObject),
    /// The ValidatingWebhookConfiguration that names the default revision.
    DefaultRevision(WebhookObject),
    Secret(DataObject),
    ConfigMap(DataObject),
    /// An object of a config kind, which the model parses.
    Config(Box<Value>),
}

impl ClusterObject {
    /// Reads an object by its `apiVersion` and `kind`.
    pub fn read(json: Value) -> Result<ClusterObject, serde_json::Error> {
        fn body<T: for<'de> Deserialize<'de>>(json: Value) -> Result<T, serde_json::Error> {
            serde_json::from_value(json)
        }
        let word = |key: &str| json.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        match (word("apiVersion").as_str(), word("kind").as_str()) {
            ("v1", "Service") => body(json).map(ClusterObject::Service),
            ("discovery.k8s.io/v1", "EndpointSlice") => body(json).map(ClusterObject::EndpointSlice),
            ("v1", "Pod") => body(json).map(ClusterObject::Pod),
            ("v1", "Node") => body(json).map(ClusterObject::Node),
            ("v1", "Namespace") => body(json).map(ClusterObject::Namespace),
            ("v1", "Secret") => body(json).map(ClusterObject::Secret),
            ("v1", "ConfigMap") => body(json).map(ClusterObject::ConfigMap),
            _ => Ok(ClusterObject::Config(Box::new(json))),
        }
    }
}

macro_rules! objects {
    ($($type:ident),*) => {
        $(impl Resource for $type {
            type DynamicType = ApiResource;
            type Scope = DynamicResourceScope;

            fn kind(known: &ApiResource) -> Cow<'_, str> {
                known.kind.as_str().into()
            }

            fn group(known: &ApiResource) -> Cow<'_, str> {
                known.group.as_str().into()
            }

            fn version(known: &ApiResource) -> Cow<'_, str> {
                known.version.as_str().into()
            }

            fn api_version(known: &ApiResource) -> Cow<'_, str> {
                known.api_version.as_str().into()
            }

            fn plural(known: &ApiResource) -> Cow<'_, str> {
                known.plural.as_str().into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        })*
    };
}

objects!(
    ServiceObject,
    EndpointSlice,
    PodObject,
    NodeObject,
    NamespaceObject,
    WebhookObject,
    DataObject,
    CustomResourceDefinition
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceObject {
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "or_default")]
    pub spec: ServiceSpec,
    #[serde(deserialize_with = "or_default")]
    pub status: ServiceStatus,
}

/// Unlike the other types it is stored, so its fields are compact.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    #[serde(rename = "type")]
    pub kind: Str,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Str,
    #[serde(rename = "clusterIPs", deserialize_with = "or_default")]
    pub cluster_ips: Box<[Str]>,
    #[serde(rename = "externalIPs", deserialize_with = "or_default")]
    pub external_ips: Box<[Str]>,
    pub external_name: Str,
    pub internal_traffic_policy: Option<Str>,
    pub traffic_distribution: Option<Str>,
    pub publish_not_ready_addresses: bool,
    #[serde(deserialize_with = "or_default")]
    pub ports: Box<[ServicePort]>,
    #[serde(deserialize_with = "label_set")]
    pub selector: Labels,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    pub name: Str,
    pub port: u16,
    pub protocol: Str,
    pub app_protocol: Option<Str>,
    pub target_port: Option<IntOrString>,
    pub node_port: u16,
}

/// A port by number or by name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum IntOrString {
    Int(u16),
    String(Str),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    #[serde(deserialize_with = "or_default")]
    pub load_balancer: LoadBalancer,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LoadBalancer {
    #[serde(deserialize_with = "or_default")]
    pub ingress: Vec<LoadBalancerIngress>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LoadBalancerIngress {
    pub ip: String,
    pub hostname: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    pub metadata: ObjectMeta,
    pub address_type: String,
    #[serde(deserialize_with = "or_default")]
    pub endpoints: Vec<SliceEndpoint>,
    #[serde(deserialize_with = "or_default")]
    pub ports: Vec<SlicePort>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SliceEndpoint {
    #[serde(deserialize_with = "or_default")]
    pub addresses: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub conditions: EndpointConditions,
    pub target_ref: Option<TargetRef>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EndpointConditions {
    pub ready: Option<bool>,
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TargetRef {
    pub kind: String,
    pub name: String,
    pub namespace: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SlicePort {
    pub name: Option<String>,
    pub port: Option<u16>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodObject {
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "or_default")]
    pub spec: PodSpec,
    #[serde(deserialize_with = "or_default")]
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    pub node_name: String,
    pub service_account_name: String,
    pub hostname: String,
    pub subdomain: String,
    #[serde(deserialize_with = "or_default")]
    pub containers: Vec<Container>,
    #[serde(deserialize_with = "or_default")]
    pub init_containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    pub restart_policy: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub ports: Vec<ContainerPort>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerPort {
    pub name: String,
    pub container_port: u16,
    pub protocol: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    pub phase: String,
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    #[serde(rename = "podIPs", deserialize_with = "or_default")]
    pub pod_ips: Vec<PodIp>,
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<StatusCondition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodIp {
    pub ip: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StatusCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeObject {
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "or_default")]
    pub status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    #[serde(deserialize_with = "or_default")]
    pub addresses: Vec<NodeAddress>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    #[serde(rename = "type")]
    pub kind: String,
    pub address: String,
}

/// A Namespace.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NamespaceObject {
    pub metadata: ObjectMeta,
}

/// A webhook configuration, of which only labels are read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct WebhookObject {
    pub metadata: ObjectMeta,
}

/// A Secret or a ConfigMap. Values of a Secret are in base64.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DataObject {
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "or_default")]
    pub data: BTreeMap<String, String>,
}

/// Reads `null` as the default.
fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

fn label_set<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Labels, D::Error> {
    let map: BTreeMap<String, String> = or_default(deserializer)?;
    Ok(Labels::from(&map))
}

/// The labels of an object.
pub(super) fn labels(meta: &ObjectMeta) -> Labels {
    meta.labels.as_ref().map(Labels::from).unwrap_or_default()
}

/// The value of an annotation, or an empty string.
pub(super) fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> &'a str {
    meta.annotations.as_ref().and_then(|all| all.get(key)).map_or("", String::as_str)
}

/// Seconds since 1970.
pub(super) fn created(meta: &ObjectMeta) -> i64 {
    meta.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second())
}

/// A CustomResourceDefinition.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CustomResourceDefinition {
    pub metadata: ObjectMeta,
    pub spec: DefinitionSpec,
    #[serde(deserialize_with = "or_default")]
    pub status: DefinitionStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DefinitionSpec {
    pub group: String,
    /// `Namespaced` or `Cluster`.
    pub scope: String,
    pub names: DefinitionNames,
    pub versions: Vec<DefinitionVersion>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DefinitionNames {
    pub kind: String,
    pub plural: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DefinitionVersion {
    pub name: String,
    pub served: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DefinitionStatus {
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<StatusCondition>,
}

impl CustomResourceDefinition {
    /// Whether the API server serves the kind.
    pub fn is_usable(&self) -> bool {
        let established = |c: &StatusCondition| c.kind == "Established" && c.status == "True";
        self.metadata.deletion_timestamp.is_none() && self.status.conditions.iter().any(established)
    }
}
