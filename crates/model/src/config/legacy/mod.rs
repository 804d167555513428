//! Converts kinds of Istio 0.8 to documents of current kinds. Parts without an equivalent are reported. An object whose
//! effect would become wider is rejected: a rule for some callers never becomes one for all.

mod fields;
mod marks;
mod v1alpha2;

use serde_json::{Map, Value, json};

pub(crate) use marks::{only_names_subsets, precedence};
pub(crate) use v1alpha2::kind;

/// A kind of Istio 0.8 that later releases dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LegacyKind {
    RouteRule,
    EgressRule,
    DestinationPolicy,
    IngressRule,
    Policy,
    MeshPolicy,
    /// Kinds of Mixer, which Istio dropped.
    Mixer,
}

impl LegacyKind {
    /// A hint for users, in addition to the current equivalent.
    pub(crate) fn hint(self) -> &'static str {
        match self {
            LegacyKind::RouteRule => {
                " (the routes of one destination belong in one VirtualService, highest precedence first)"
            }
            _ => "",
        }
    }
}

/// A legacy object.
struct LegacyObject<'a> {
    name: &'a str,
    metadata: Map<String, Value>,
    spec: &'a Map<String, Value>,
}

/// The result of a conversion.
#[derive(Debug, Default)]
pub(crate) struct LegacyConversion {
    /// Documents of current kinds.
    pub(crate) documents: Vec<Value>,
    /// Parts of the object that have no effect.
    pub(crate) notes: Vec<String>,
}

/// Why a legacy object cannot be converted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LegacyError {
    #[error("could not read {path}: expected {expected}")]
    WrongType { path: String, expected: &'static str },
    #[error("could not read {path}: {flaw}")]
    Incomplete { path: String, flaw: &'static str },
    /// The field is valid but has no equivalent in current kinds.
    #[error("could not convert {path}: {reason}")]
    NoEquivalent { path: String, reason: &'static str },
}

/// Converts a document of a legacy kind.
pub(crate) fn convert(old: LegacyKind, entries: &Map<String, Value>) -> Result<LegacyConversion, LegacyError> {
    let metadata = entries.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    let name = metadata.get("name").and_then(Value::as_str).unwrap_or_default();
    let empty = Map::new();
    let spec = match entries.get("spec") {
        Some(Value::Object(spec)) => spec,
        None | Some(Value::Null) => &empty,
        Some(_) => return Err(LegacyError::WrongType { path: "spec".to_owned(), expected: "an object" }),
    };
    let source = LegacyObject { name, metadata: metadata.clone(), spec };
    v1alpha2::convert(old, &source)
}

/// The documents as YAML, for users to replace the legacy one.
pub(crate) fn print(documents: &[Value]) -> String {
    let texts = documents.iter().filter_map(|document| serde_saphyr::to_string(&marks::unmarked(document)).ok());
    texts.map(|text| text.trim_end().to_owned()).collect::<Vec<_>>().join("\n---\n")
}

impl LegacyObject<'_> {
    /// A document of a current kind, with the metadata of this object.
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
