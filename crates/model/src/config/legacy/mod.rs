//! Kinds that Istio once had, rewritten as documents of today's kinds. What has no equivalent is said, and
//! an object that would mean more than it did is refused: a rule for some callers never becomes one for all.

mod fields;
mod v1alpha2;

use serde_json::{Map, Value, json};

pub(crate) use v1alpha2::{join, kind};

/// A kind of Istio 0.8 that later releases dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LegacyKind {
    RouteRule,
    EgressRule,
    DestinationPolicy,
    IngressRule,
    Policy,
    MeshPolicy,
    /// Mixer's kinds: there is no Mixer any more.
    Mixer,
}

impl LegacyKind {
    /// What to know of the kind beside its modern equivalent.
    pub(crate) fn hint(self) -> &'static str {
        match self {
            LegacyKind::RouteRule => " (rules for one destination are joined by precedence only within a file)",
            _ => "",
        }
    }
}

/// An old object while it is rewritten.
struct LegacyObject<'a> {
    name: &'a str,
    metadata: Map<String, Value>,
    spec: &'a Map<String, Value>,
}

/// What became of an old object.
#[derive(Debug, Default)]
pub(crate) struct LegacyConversion {
    /// Documents of today's kinds.
    pub(crate) documents: Vec<Value>,
    /// Parts of it that have no effect.
    pub(crate) notes: Vec<String>,
}

/// Why an old object cannot be used at all.
#[derive(Debug)]
pub(crate) struct LegacyError(pub(crate) String);

/// Rewrites a document of an old kind.
pub(crate) fn convert(old: LegacyKind, entries: &Map<String, Value>) -> Result<LegacyConversion, LegacyError> {
    let metadata = entries.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    let name = metadata.get("name").and_then(Value::as_str).unwrap_or_default();
    let empty = Map::new();
    let spec = match entries.get("spec") {
        Some(Value::Object(spec)) => spec,
        None | Some(Value::Null) => &empty,
        Some(_) => return Err(LegacyError("could not read spec: expected an object".to_owned())),
    };
    let source = LegacyObject { name, metadata: metadata.clone(), spec };
    v1alpha2::convert(old, &source)
}

/// The documents as text, to take the place of the old one.
pub(crate) fn print(documents: &[Value]) -> String {
    let texts = documents.iter().filter_map(|document| serde_saphyr::to_string(&v1alpha2::shown(document)).ok());
    texts.map(|text| text.trim_end().to_owned()).collect::<Vec<_>>().join("\n---\n")
}

impl LegacyObject<'_> {
    /// A document of today beside this object, in its namespace.
    fn document(&self, api_version: &str, kind: &str, name: &str, spec: Value) -> Value {
        let mut metadata = self.metadata.clone();
        metadata.insert("name".to_owned(), json!(name));
        json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec})
    }

    fn networking(&self, kind: &str, name: &str, spec: Value) -> Value {
        self.document("networking.istio.io/v1", kind, name, spec)
    }

    fn security(&self, kind: &str, name: &str, spec: Value) -> Value {
        self.document("security.istio.io/v1", kind, name, spec)
    }
}
