//! Recorded cases: configuration, some proxies, and the resources that each of them got from istiod.
//! `store` reads them (`proxies` and `expected` are its files), `objects` completes objects as an API server would,
//! `statuses` has the statuses written to them, `fetch` subscribes as an Envoy does (`stream` over xDS), `check` compares
//! with the recording (`outcome`), `dump` compares two servers, `report` prints the result. `update` rewrites
//! expectations, `import` copies cases from the recorder, `index` lists them all.

mod check;
mod dump;
mod error;
mod expected;
mod fetch;
mod import;
mod index;
mod objects;
mod outcome;
mod parallel;
mod proxies;
mod report;
mod selection;
mod statuses;
mod store;
mod stream;
mod update;

pub use check::{RecordingCheck, differences, disagreements, run};
pub use dump::{Comparison, Dump};
pub use error::CaseError;
pub use fetch::ResourceLookup;
pub use import::import;
pub use objects::objects;
pub use statuses::{CaseServer, StatusLookup};
pub use store::CaseStore;
pub use stream::over_stream;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use api::envoy::config::core::v3::{Locality as EnvoyLocality, Node};
use api::{Struct, TypeUrl, value};
use serde::Deserialize;
use serde_json::{Map, Value};

use expected::ExpectedResource;

/// The types that a proxy subscribes to, with their names in cases, in order of subscription.
const KINDS: [(&str, TypeUrl); 6] = [
    ("clusters", TypeUrl::CLUSTER),
    ("endpoints", TypeUrl::ENDPOINT),
    ("listeners", TypeUrl::LISTENER),
    ("routes", TypeUrl::ROUTE),
    ("extensions", TypeUrl::EXTENSION),
    ("names", TypeUrl::NAME_TABLE),
];

/// Environment variables of all recordings; variables of a case are added.
pub const RECORDED_ENV: &[(&str, &str)] = &[
    ("ENABLE_CA_SERVER", "false"),
    ("PILOT_CERT_PROVIDER", "none"),
    ("XDS_AUTH", "false"),
    ("PILOT_ENABLE_ALPN_FILTER", "false"),
    ("PILOT_ENABLE_METADATA_EXCHANGE", "false"),
];

/// One recorded case.
#[derive(Debug)]
pub struct Case {
    pub topic: String,
    pub name: String,
    pub folder: PathBuf,
    pub world: CaseInput,
    /// MeshConfig, if the case has one.
    pub mesh: Option<String>,
    /// MeshNetworks, if the case has some.
    pub networks: Option<String>,
    /// Environment variables of the server, including `RECORDED_ENV`.
    pub env: BTreeMap<String, String>,
    pub proxies: Vec<CaseProxy>,
    /// Statuses written to objects of the cluster.
    statuses: BTreeMap<String, Value>,
    expected: Vec<ExpectedResource>,
}

/// Input of the server.
#[derive(Debug)]
pub enum CaseInput {
    /// Documents of Istio's kinds, as one file.
    Files(String),
    /// Objects of a Kubernetes cluster.
    Kubernetes(String),
}

/// A proxy that subscribes.
#[derive(Debug, Deserialize)]
pub struct CaseProxy {
    pub name: String,
    /// `type~ip~pod.ns~domain`.
    pub id: String,
    #[serde(default)]
    pub metadata: Value,
    #[serde(default)]
    pub locality: CaseLocality,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct CaseLocality {
    pub region: String,
    pub zone: String,
    pub sub_zone: String,
}

impl Case {
    pub fn label(&self) -> String {
        format!("{}/{}", self.topic, self.name)
    }

    /// Recorded resources of a proxy and type, in order of names.
    pub fn expected(&self, proxy: &str, kind: &TypeUrl) -> Vec<Arc<Value>> {
        let kind = KINDS.iter().find(|(_, url)| url == kind).map_or("", |(name, _)| name);
        let of_kind = self.expected.iter().filter(|e| e.proxy == proxy && e.kind == kind);
        of_kind.map(|e| Arc::clone(&e.resource)).collect()
    }
}

impl CaseProxy {
    /// The node of its first request.
    pub fn node(&self) -> Node {
        let CaseLocality { region, zone, sub_zone } = &self.locality;
        let locality = EnvoyLocality { region: region.clone(), zone: zone.clone(), sub_zone: sub_zone.clone() };
        Node {
            id: self.id.clone(),
            metadata: self.metadata.as_object().map(structure),
            locality: (locality != EnvoyLocality::default()).then_some(locality),
            ..Node::default()
        }
    }

    /// Whether its agent resolves DNS names and subscribes to the name table.
    fn wants_names(&self) -> bool {
        match &self.metadata["DNS_CAPTURE"] {
            Value::String(text) => text.eq_ignore_ascii_case("true"),
            other => other.as_bool().unwrap_or_default(),
        }
    }
}

fn structure(map: &Map<String, Value>) -> Struct {
    Struct { fields: map.iter().map(|(k, v)| (k.clone(), metadata_value(v))).collect() }
}

fn metadata_value(value: &Value) -> api::Value {
    let kind = match value {
        Value::Null => value::Kind::NullValue(0),
        Value::Bool(b) => value::Kind::BoolValue(*b),
        Value::Number(n) => value::Kind::NumberValue(n.as_f64().unwrap_or_default()),
        Value::String(s) => value::Kind::StringValue(s.clone()),
        Value::Array(items) => {
            value::Kind::ListValue(prost_types::ListValue { values: items.iter().map(metadata_value).collect() })
        }
        Value::Object(map) => value::Kind::StructValue(structure(map)),
    };
    api::Value { kind: Some(kind) }
}
