//! HTTPRoute, GRPCRoute, TCPRoute and TLSRoute.

use serde::{Deserialize, Serialize};

use super::{ParentReference, service_kind};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRoute {
    pub parent_refs: Vec<ParentReference>,
    pub hostnames: Vec<String>,
    #[serde(default = "rules_for_all")]
    pub rules: Vec<HttpRule>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRule {
    pub name: Option<String>,
    #[serde(default = "every_path")]
    pub matches: Vec<HttpMatch>,
    pub filters: Vec<Filter>,
    pub backend_refs: Vec<BackendRef>,
    pub timeouts: Timeouts,
    pub retry: Option<RouteRetry>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpMatch {
    pub path: PathMatch,
    pub headers: Vec<ValueMatch>,
    pub query_params: Vec<ValueMatch>,
    pub method: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct PathMatch {
    #[serde(rename = "type")]
    pub kind: String,
    pub value: String,
}

/// A match on a header or query parameter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ValueMatch {
    #[serde(rename = "type", default = "exact")]
    pub kind: String,
    pub name: String,
    #[serde(default)]
    pub value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Timeouts {
    pub request: Option<String>,
    pub backend_request: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteRetry {
    pub codes: Vec<u16>,
    pub attempts: Option<i32>,
    pub backoff: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRoute {
    pub parent_refs: Vec<ParentReference>,
    pub hostnames: Vec<String>,
    pub rules: Vec<GrpcRule>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRule {
    pub name: Option<String>,
    pub matches: Vec<GrpcMatch>,
    pub filters: Vec<Filter>,
    pub backend_refs: Vec<BackendRef>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct GrpcMatch {
    pub method: Option<GrpcMethod>,
    pub headers: Vec<ValueMatch>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GrpcMethod {
    #[serde(rename = "type", default = "exact")]
    pub kind: String,
    pub service: Option<String>,
    pub method: Option<String>,
}

/// A TCPRoute or TLSRoute. Only TLSRoutes have host names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamRoute {
    pub parent_refs: Vec<ParentReference>,
    pub hostnames: Vec<String>,
    pub rules: Vec<StreamRule>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamRule {
    pub backend_refs: Vec<BackendRef>,
}

/// A backend with its weight.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BackendRef {
    #[serde(default)]
    pub group: String,
    #[serde(default = "service_kind")]
    pub kind: String,
    pub name: String,
    pub namespace: Option<String>,
    pub port: Option<u16>,
    #[serde(default = "one")]
    pub weight: i32,
    #[serde(default)]
    pub filters: Vec<Filter>,
}

/// A filter on requests or responses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Filter {
    #[serde(rename = "type")]
    pub kind: String,
    pub request_header_modifier: Option<HeaderFilter>,
    pub response_header_modifier: Option<HeaderFilter>,
    pub request_mirror: Option<Mirror>,
    pub request_redirect: Option<Redirect>,
    pub url_rewrite: Option<Rewrite>,
    pub cors: Option<Cors>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct HeaderFilter {
    pub set: Vec<HeaderValue>,
    pub add: Vec<HeaderValue>,
    pub remove: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct HeaderValue {
    pub name: String,
    pub value: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mirror {
    pub backend_ref: BackendRef,
    pub percent: Option<u32>,
    pub fraction: Option<Fraction>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fraction {
    pub numerator: u32,
    #[serde(default = "hundred")]
    pub denominator: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Redirect {
    pub scheme: Option<String>,
    pub hostname: Option<String>,
    pub path: Option<PathModifier>,
    pub port: Option<u16>,
    #[serde(default = "found")]
    pub status_code: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Rewrite {
    pub hostname: Option<String>,
    pub path: Option<PathModifier>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PathModifier {
    #[serde(rename = "type")]
    pub kind: String,
    pub replace_full_path: String,
    pub replace_prefix_match: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Cors {
    pub allow_origins: Vec<String>,
    pub allow_credentials: bool,
    pub allow_methods: Vec<String>,
    pub allow_headers: Vec<String>,
    pub expose_headers: Vec<String>,
    /// Seconds.
    pub max_age: i32,
}

impl Default for PathMatch {
    fn default() -> PathMatch {
        PathMatch { kind: "PathPrefix".to_owned(), value: "/".to_owned() }
    }
}

impl Default for Cors {
    fn default() -> Cors {
        Cors {
            allow_origins: Vec::new(),
            allow_credentials: false,
            allow_methods: Vec::new(),
            allow_headers: Vec::new(),
            expose_headers: Vec::new(),
            max_age: 5,
        }
    }
}

/// The default match: all paths.
fn every_path() -> Vec<HttpMatch> {
    vec![HttpMatch::default()]
}

fn rules_for_all() -> Vec<HttpRule> {
    vec![HttpRule { matches: every_path(), ..HttpRule::default() }]
}

fn exact() -> String {
    "Exact".to_owned()
}

fn one() -> i32 {
    1
}

fn hundred() -> u32 {
    100
}

fn found() -> u32 {
    302
}
