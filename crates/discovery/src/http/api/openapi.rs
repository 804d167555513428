//! The OpenAPI document of `/api/v1`, made from the table of requests and from the types of their answers.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::plan::PlanReport;
use super::wait::WaitReport;
use super::{ApiPage, PAGES};

/// The whole document.
pub(super) fn document() -> Value {
    let mut generator = SchemaSettings::openapi3().into_generator();
    let mut paths = Map::new();
    for page in PAGES {
        let schema = (page.schema)(&mut generator);
        let answers = responses("application/json", json!(schema), "The answer");
        let mut get = json!({"summary": page.help, "responses": answers});
        get["parameters"] = parameters(page);
        paths.insert(page.path.to_owned(), json!({"get": get}));
    }
    let event = responses("text/event-stream", json!({"type": "string"}), "Server-sent events with JSON data");
    paths.insert(
        "/api/v1/events".to_owned(),
        json!({"get": {"summary": "Changes, pushes, rejections and sources as they happen", "responses": event}}),
    );
    for (path, help, schema) in [
        ("/api/v1/plan", "What a change would do; nothing is changed", generator.subschema_for::<PlanReport>()),
        ("/api/v1/wait", "Answers when all proxies have the objects", generator.subschema_for::<WaitReport>()),
    ] {
        paths.insert(path.to_owned(), json!({"post": posted(help, json!(schema))}));
    }
    json!({
        "openapi": "3.0.3",
        "info": {
            "title": "Pilotage",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Read-only view of a running pilot-discovery, for callers on the same machine.",
        },
        "paths": paths,
        "components": {"schemas": generator.take_definitions(true)},
    })
}

fn posted(help: &str, schema: Value) -> Value {
    let parameters = [
        ("namespace", "Namespace of objects that do not name one"),
        ("delete", "With any value: the objects are deleted"),
    ];
    json!({
        "summary": help,
        "parameters": parameters.map(|(name, help)| parameter("query", name, help)),
        "requestBody": {"required": true, "content": {"application/yaml": {"schema": {"type": "string"}}}},
        "responses": responses("application/json", schema, "The answer"),
    })
}

fn responses(content: &str, schema: Value, help: &str) -> Value {
    let error = json!({"type": "object", "properties": {"error": {"type": "string"}}});
    json!({
        "200": {"description": help, "content": {content: {"schema": schema}}},
        "default": {"description": "An error with its reason", "content": {"application/json": {"schema": error}}},
    })
}

fn parameters(page: &ApiPage) -> Value {
    let in_path = page.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let in_path = in_path.map(|name| parameter("path", name, "Name of the proxy"));
    in_path.chain(page.query.iter().map(|(name, help)| parameter("query", name, help))).collect()
}

fn parameter(place: &str, name: &str, help: &str) -> Value {
    json!({"in": place, "name": name, "description": help, "required": place == "path", "schema": {"type": "string"}})
}
