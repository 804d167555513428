//! Configuration objects with their places.

use model::config::print::to_json;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use translate::names::config_path;

use super::{ApiQuery, ApiResult, Pages, json_of};

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
}

pub(super) fn list(pages: &Pages, query: &ApiQuery) -> ApiResult {
    let published = pages.pilot().world().now();
    let objects = &published.snapshot.objects;
    let chosen = objects.iter().filter(|(key, _)| {
        query.is("kind", key.kind.as_str())
            && query.is("namespace", &key.namespace)
            && query.is("name", &key.name)
            && query.get("config").is_none_or(|path| path == config_path(key.kind, &key.namespace, &key.name))
    });
    let entry = |(key, object): (&model::config::Key, &model::config::Object)| {
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
        }
    };
    json_of(&chosen.map(entry).collect::<Vec<_>>())
}
