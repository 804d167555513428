//! Kinds of the Kubernetes Gateway API and Ingress, reduced to the fields that are used. They have no descriptor, so serde
//! parses them, with the defaults that an API server would set.

mod gateway;
mod ingress;
mod policy;
mod route;

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use gateway::{
    AllowedRoutes, ClientValidation, FrontendTls, Gateway, GatewayAddress, GatewayClass, Listener, ListenerSet,
    ListenerTls, NamespaceRule, ParametersReference, RouteKind, SecretReference,
};
pub use ingress::{Ingress, IngressBackend, IngressClass, IngressPath, IngressRule};
pub use policy::{
    BackendTlsPolicy, BackendTrafficPolicy, GrantFrom, GrantTo, PolicyTarget, ReferenceGrant, RetryConstraint,
    SubjectAltName,
};
pub use route::{
    BackendRef, Cors, Filter, Fraction, GrpcMatch, GrpcMethod, GrpcRoute, GrpcRule, HeaderFilter, HeaderValue,
    HttpMatch, HttpRoute, HttpRule, Mirror, PathMatch, PathModifier, Redirect, Rewrite, RouteRetry, StreamRoute,
    StreamRule, Timeouts, ValueMatch,
};

/// The API group of the Gateway API.
pub const GROUP: &str = "gateway.networking.k8s.io";

/// A reference to the parent of a route or ListenerSet.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentReference {
    #[serde(default = "gateway_group")]
    pub group: String,
    #[serde(default = "gateway_kind")]
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// A Kubernetes label selector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    pub match_labels: BTreeMap<String, String>,
    pub match_expressions: Vec<LabelExpression>,
}

/// One condition of a selector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct LabelExpression {
    pub key: String,
    pub operator: String,
    pub values: Vec<String>,
}

/// Parses the spec of a document. Null counts as missing, as in an API server.
pub(super) fn read<T: DeserializeOwned>(spec: &Value) -> Result<T, serde_path_to_error::Error<serde_json::Error>> {
    serde_path_to_error::deserialize(without_nulls(spec))
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Null => Value::Object(Map::new()),
        Value::Object(entries) => {
            let kept = entries.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key.clone(), without_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}

fn gateway_group() -> String {
    GROUP.to_owned()
}

fn gateway_kind() -> String {
    "Gateway".to_owned()
}

fn service_kind() -> String {
    "Service".to_owned()
}

#[cfg(test)]
mod tests;
