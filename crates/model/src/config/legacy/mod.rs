//! Kinds of old Istio releases (0.8 to 1.6), converted to documents of current kinds. This is the one conversion for all
//! stores; the snapshot (`snapshot/gateway_api/legacy.rs`) places the results. Parts without an equivalent are reported.
//! An object whose effect would become wider is rejected: a rule for some callers never becomes one for all. The kinds of
//! RBAC are typed and converted by the snapshot, because a binding needs its role.

mod fields;
mod marks;
mod messages;
mod v1alpha2;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use self::fields::LegacyFields;
use super::parse::{self, Parsed};
use super::problem::FileLocation;
use super::{Kind, Meta, Object};

pub(crate) use marks::{only_names_subsets, precedence};
pub(crate) use messages::{decode, encode, name as message_name};

pub use marks::{SOURCE, is_made_from_legacy};

/// The spec of a legacy object as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LegacySpec(Map<String, Value>);

/// A spec is not an object.
#[derive(Debug, thiserror::Error)]
#[error("the spec is not an object")]
pub struct NotAnObject;

impl LegacySpec {
    /// Reads a spec. Null is an empty one.
    pub fn read(json: &Value) -> Result<LegacySpec, NotAnObject> {
        match json {
            Value::Null => Ok(LegacySpec(Map::new())),
            Value::Object(entries) => Ok(LegacySpec(entries.clone())),
            _ => Err(NotAnObject),
        }
    }

    pub fn to_json(&self) -> Value {
        Value::Object(self.0.clone())
    }
}

/// Labels of the workloads of a service, by namespace and name; `None` if it is unknown.
pub type WorkloadsOf<'a> = &'a dyn Fn(&str, &str) -> Option<Map<String, Value>>;

/// What the conversion needs to know of the mesh.
#[derive(Clone, Copy)]
pub struct LegacyMesh<'a> {
    pub root_namespace: &'a str,
    pub domain: &'a str,
    pub workloads_of: WorkloadsOf<'a>,
}

impl Default for LegacyMesh<'_> {
    fn default() -> Self {
        LegacyMesh { root_namespace: "istio-system", domain: "cluster.local", workloads_of: &|_, _| None }
    }
}

/// A legacy object and its surroundings.
struct LegacyObject<'a> {
    name: &'a str,
    namespace: &'a str,
    metadata: Map<String, Value>,
    spec: &'a Map<String, Value>,
    mesh: LegacyMesh<'a>,
}

/// The result of a conversion.
#[derive(Debug, Default)]
pub struct LegacyConversion {
    /// Documents of current kinds.
    pub documents: Vec<Value>,
    /// Parts of the object that have no effect.
    pub notes: Vec<String>,
}

/// Why a legacy object cannot be converted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LegacyError {
    #[error("could not read {path}: expected {expected}")]
    WrongType { path: String, expected: &'static str },
    #[error("could not read {path}: {flaw}")]
    Incomplete { path: String, flaw: &'static str },
    /// The field is valid but has no equivalent in current kinds.
    #[error("could not convert {path}: {reason}")]
    NoEquivalent { path: String, reason: &'static str },
}

/// Converts an object; `None` if its kind is not converted here.
pub fn convert(object: &Object, mesh: LegacyMesh<'_>) -> Option<Result<LegacyConversion, LegacyError>> {
    let spec = object.spec.legacy()?;
    let meta = &object.meta;
    let source =
        LegacyObject { name: &meta.name, namespace: &meta.namespace, metadata: metadata(meta), spec: &spec.0, mesh };
    Some(v1alpha2::convert(object.spec.kind(), &source))
}

/// The metadata that converted documents take over.
fn metadata(meta: &Meta) -> Map<String, Value> {
    let mut entries = Map::from_iter([("name".to_owned(), json!(&*meta.name))]);
    if !meta.namespace.is_empty() {
        entries.insert("namespace".to_owned(), json!(meta.namespace.as_str()));
    }
    let labels: Map<String, Value> =
        meta.labels.iter().map(|(key, value)| (key.to_string(), json!(&**value))).collect();
    // kubectl's copy of the legacy object says nothing about the new ones.
    let kept = meta.annotations.iter().filter(|(key, _)| &***key != "kubectl.kubernetes.io/last-applied-configuration");
    let annotations: Map<String, Value> = kept.map(|(key, value)| (key.to_string(), json!(&**value))).collect();
    for (name, pairs) in [("labels", labels), ("annotations", annotations)] {
        if !pairs.is_empty() {
            entries.insert(name.to_owned(), pairs.into());
        }
    }
    entries
}

/// The converted objects, with age and place of the legacy one, and the problems of reading them.
pub fn objects(conversion: &LegacyConversion, source: &Meta) -> Parsed {
    let location = source.location.clone().unwrap_or(FileLocation { file: "".into(), line: 0 });
    let mut all = Parsed::default();
    for document in &conversion.documents {
        let parsed = parse::value(document, &location);
        all.problems.extend(parsed.problems);
        all.objects.extend(parsed.objects.into_iter().map(|mut object| {
            let meta = Arc::make_mut(&mut object.meta);
            (meta.created, meta.location) = (source.created, source.location.clone());
            object
        }));
    }
    all
}

/// The documents as YAML, for users to replace the legacy one.
pub fn print(documents: &[Value]) -> String {
    documents.iter().map(print_one).collect::<Vec<_>>().join("\n---\n")
}

/// One document as YAML, without a final newline.
pub fn print_one(document: &Value) -> String {
    let text = serde_saphyr::to_string(&marks::unmarked(document)).unwrap_or_default();
    text.trim_end().to_owned()
}

/// A hint for users who replace an object of this kind, in addition to the current equivalent.
pub fn hint(kind: Kind) -> &'static str {
    match kind {
        Kind::RouteRule => " (the routes of one destination belong in one VirtualService, highest precedence first)",
        _ => "",
    }
}

impl<'a> LegacyObject<'a> {
    fn fields(&self) -> LegacyFields<'a> {
        LegacyFields::new("spec", self.spec, self.mesh.domain)
    }

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
