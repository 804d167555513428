//! Configuration objects with their places.

use std::collections::BTreeMap;
use std::path::Path;

use model::config::print::to_json;
use model::config::{Key, Object};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use translate::names::config_path;

use super::{ApiQuery, ApiResult, Pages, json_of};
use crate::serve::findings;

/// An object and where it was read from.
#[derive(Serialize, JsonSchema)]
pub(super) struct ObjectEntry {
    kind: &'static str,
    namespace: String,
    name: String,
    /// The path of the object as Envoy's metadata has it.
    config: String,
    file: Option<String>,
    line: Option<u32>,
    /// The store that it comes from.
    source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<Value>,
    /// Lines of its rules by field, such as `spec.http[0]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    lines: Option<BTreeMap<String, u32>>,
}

/// Lists whose entries have lines of their own.
const RULES: [&str; 6] = ["http", "tcp", "tls", "rules", "jwtRules", "subsets"];

pub(super) fn list(pages: &Pages, query: &ApiQuery) -> ApiResult {
    let published = pages.pilot().world().now();
    let objects = &published.snapshot.objects;
    let chosen = objects.iter().filter(|(key, _)| {
        query.is("kind", key.kind.as_str())
            && query.is("namespace", &key.namespace)
            && query.is("name", &key.name)
            && query.get("config").is_none_or(|path| path == config_path(key.kind, &key.namespace, &key.name))
    });
    let entry = |(key, object): (&Key, &Object)| {
        let location = object.meta.location.as_ref();
        ObjectEntry {
            kind: key.kind.as_str(),
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            config: config_path(key.kind, &key.namespace, &key.name),
            file: location.map(|location| location.file.to_string()),
            line: location.map(|location| location.line).filter(|line| *line > 0),
            source: objects.store(key).map(|store| store.0.to_string()),
            object: query.has("spec").then(|| to_json(object)),
            lines: (query.has("lines") && query.get("config").is_some()).then(|| lines(key, object)),
        }
    };
    json_of(&chosen.map(entry).collect::<Vec<_>>())
}

/// Lines of an object's rules, read from its file again. Empty if it has none that can be read.
pub(super) fn lines(key: &Key, object: &Object) -> BTreeMap<String, u32> {
    let file = object.meta.location.as_ref().map(|location| &*location.file);
    let Some(file) = file.filter(|file| Path::new(file).is_absolute()) else { return BTreeMap::new() };
    let spec = &to_json(object)["spec"];
    let of_list = |list: &&str| {
        let count = spec[*list].as_array().map_or(0, Vec::len);
        (0..count).map(|index| format!("spec.{list}[{index}]")).collect::<Vec<_>>()
    };
    let fields: Vec<String> = RULES.iter().flat_map(of_list).collect();
    let found = findings::lines_of(Path::new(file), key, &fields);
    fields.into_iter().zip(found).collect()
}
