//! OpenAPI v3 documents, generated from the schemas of the table. kubectl reads them for `explain`, for `apply`, and to
//! learn which parameters requests may have.

use serde_json::{Map, Value, json};

use crate::resource::{ResourceInfo, ResourceTable};
use crate::schema;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

/// `/openapi/v3`: the paths of all documents. `hash` changes with every release.
pub(crate) fn index(hash: &str) -> Value {
    let mut paths = Map::new();
    for (group, versions) in ResourceTable::get().group_versions() {
        for version in versions {
            let path = if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
            paths.insert(path.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}")}));
        }
    }
    json!({ "paths": paths })
}

/// The document of one version of a group.
pub(crate) fn document(group: &str, version: &str) -> Option<Value> {
    let (mut paths, mut schemas) = (Map::new(), Map::new());
    for resource in ResourceTable::get().of_version(group, version) {
        let name = schema_name(resource, version);
        schemas.insert(name.clone(), object_schema(resource, version));
        schemas.insert(format!("{name}List"), list_schema(resource, version, &name));
        paths.extend(resource_paths(resource, version, &name));
    }
    if paths.is_empty() {
        return None;
    }
    schemas.insert(META.to_owned(), schema::metadata());
    let list_meta = json!({
        "type": "object",
        "properties": {
            "continue": {"type": "string"}, "resourceVersion": {"type": "string"}, "selfLink": {"type": "string"},
            "remainingItemCount": {"type": "integer", "format": "int64"},
        },
    });
    schemas.insert(LIST_META.to_owned(), list_meta);
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Pilotage configuration API", "version": "v1"},
        "paths": paths,
        "components": {"schemas": schemas},
    }))
}

/// The name of a schema: the reversed group, version and kind.
fn schema_name(resource: &ResourceInfo, version: &str) -> String {
    let group = match resource.group.as_str() {
        "" => "io.k8s.api.core".to_owned(),
        group => group.split('.').rev().collect::<Vec<_>>().join("."),
    };
    format!("{group}.{version}.{}", resource.kind)
}

fn kind_of(resource: &ResourceInfo, version: &str, kind: &str) -> Value {
    json!({"group": resource.group, "version": version, "kind": kind})
}

fn object_schema(resource: &ResourceInfo, version: &str) -> Value {
    let mut schema = resource.schema.clone();
    schema["properties"]["metadata"] = json!({
        "allOf": [{"$ref": format!("#/components/schemas/{META}")}],
        "default": {},
        "description": "Standard object metadata.",
    });
    schema["description"] = format!("{} of {}.", resource.kind, resource.api_version(version)).into();
    schema["x-kubernetes-group-version-kind"] = json!([kind_of(resource, version, &resource.kind)]);
    schema
}

fn list_schema(resource: &ResourceInfo, version: &str, name: &str) -> Value {
    json!({
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"allOf": [{"$ref": format!("#/components/schemas/{LIST_META}")}]},
            "items": {"type": "array", "items": {"allOf": [{"$ref": format!("#/components/schemas/{name}")}]}},
        },
        "x-kubernetes-group-version-kind": [kind_of(resource, version, &format!("{}List", resource.kind))],
    })
}

fn parameters(names: &[(&str, &str)]) -> Value {
    let parameter = |(name, kind): &(&str, &str)| json!({"name": name, "in": "query", "schema": {"type": kind}});
    names.iter().map(parameter).collect()
}

fn resource_paths(resource: &ResourceInfo, version: &str, name: &str) -> Map<String, Value> {
    let reference = json!({"$ref": format!("#/components/schemas/{name}")});
    let list = json!({"$ref": format!("#/components/schemas/{name}List")});
    let content =
        |schema: &Value| json!({"application/json": {"schema": schema}, "application/yaml": {"schema": schema}});
    let writes = [("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];
    let operation = |action: &str, names: &[(&str, &str)], reply: &Value, body: Option<Value>| {
        let mut operation = json!({
            "operationId": format!("{action}{}{version}{}", resource.group.replace('.', ""), resource.kind),
            "parameters": parameters(names),
            "responses": {"200": {"description": "OK", "content": content(reply)}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": kind_of(resource, version, &resource.kind),
        });
        if let Some(body) = body {
            operation["requestBody"] = json!({ "content": body });
        }
        operation
    };
    let lists = [
        ("labelSelector", "string"),
        ("fieldSelector", "string"),
        ("limit", "integer"),
        ("continue", "string"),
        ("resourceVersion", "string"),
        ("resourceVersionMatch", "string"),
        ("watch", "boolean"),
        ("allowWatchBookmarks", "boolean"),
        ("sendInitialEvents", "boolean"),
        ("timeoutSeconds", "integer"),
    ];
    let any = json!({"type": "object"});
    let mut patches = json!({
        "application/apply-patch+yaml": {"schema": any},
        "application/json-patch+json": {"schema": {"type": "array"}},
        "application/merge-patch+json": {"schema": any},
    });
    // kubectl chooses the kind of its patches by this.
    if !resource.is_custom {
        patches["application/strategic-merge-patch+json"] = json!({"schema": any});
    }
    let mut forced = writes.to_vec();
    forced.push(("force", "boolean"));
    let collection = json!({
        "get": operation("list", &lists, &list, None),
        "post": operation("post", &writes, &reference, Some(content(&reference))),
        "delete": operation("deletecollection", &lists, &any, None),
    });
    let item = json!({
        "get": operation("get", &[], &reference, None),
        "put": operation("put", &writes, &reference, Some(content(&reference))),
        "patch": operation("patch", &forced, &reference, Some(patches)),
        "delete": operation("delete", &[("dryRun", "string"), ("gracePeriodSeconds", "integer"), ("propagationPolicy", "string")], &any, None),
    });
    let root = match resource.group.as_str() {
        "" => format!("/api/{version}"),
        group => format!("/apis/{group}/{version}"),
    };
    let base = match resource.is_namespaced {
        true => format!("{root}/namespaces/{{namespace}}/{}", resource.plural),
        false => format!("{root}/{}", resource.plural),
    };
    let mut paths = Map::new();
    paths.insert(format!("{base}/{{name}}"), item);
    paths.insert(base, collection);
    paths
}

#[cfg(test)]
mod tests {
    use super::{document, index};

    #[test]
    fn every_listed_document_exists_and_its_references_resolve() {
        let index = index("x");
        let paths = index["paths"].as_object().expect("paths");
        assert!(paths.contains_key("api/v1") && paths.contains_key("apis/networking.istio.io/v1"));
        for path in paths.keys() {
            let parts: Vec<&str> = path.split('/').collect();
            let (group, version) = if parts[0] == "api" { ("", parts[1]) } else { (parts[1], parts[2]) };
            let document = document(group, version).expect("a document");
            let schemas = document["components"]["schemas"].as_object().expect("schemas");
            let text = document.to_string();
            for reference in text.split("#/components/schemas/").skip(1) {
                let name = reference.split('"').next().unwrap_or_default();
                assert!(schemas.contains_key(name), "{name}");
            }
        }
    }
}
