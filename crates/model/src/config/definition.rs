//! CustomResourceDefinitions of our kinds, with structural schemas generated from the descriptors that documents are
//! parsed with: an API server accepts exactly what can be parsed.

use prost_reflect::{FieldDescriptor, Kind as FieldKind, MessageDescriptor};
use serde_json::{Map, Value, json};

use super::Kind;

/// Recursion limit of schemas; deeper values are not checked.
const DEEPEST: usize = 12;

/// The definition of a kind; `None` for kinds that are not Istio's. Legacy kinds never had a schema: everything is stored,
/// and their conversion reports mistakes.
pub fn definition(kind: Kind) -> Option<Value> {
    let spec = match kind.message() {
        Some(message) => message_schema(&api::reflect::istio().get_message_by_name(message)?, &mut Vec::new()),
        None if kind.is_legacy() => anything(),
        None => return None,
    };
    let schema = json!({"type": "object", "properties": {"spec": spec, "status": anything()}});
    let version = |(index, name): (usize, &&str)| {
        let mut version = json!({
            "name": name,
            "served": true,
            "storage": index == 0,
            "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}},
        });
        let columns = columns(kind);
        if !columns.is_empty() {
            version["additionalPrinterColumns"] = columns.into();
        }
        version
    };
    let versions: Vec<Value> = kind.versions().iter().enumerate().map(version).collect();
    let (group, plural) = (kind.group(), kind.plural());
    let short_names: Vec<&str> = kind.traits().short_name.into_iter().collect();
    Some(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}"), "labels": {"app": "istio-pilot", "release": "istio"}},
        "spec": {
            "group": group,
            "names": {
                "kind": kind.as_str(),
                "listKind": format!("{kind}List"),
                "plural": plural,
                "singular": kind.as_str().to_lowercase(),
                "shortNames": short_names,
                "categories": ["istio-io", category(group)],
            },
            "scope": if kind.is_cluster_wide() { "Cluster" } else { "Namespaced" },
            "versions": versions,
        },
    }))
}

/// The definitions of current kinds, in the order of `Kind::ALL`.
pub fn definitions() -> impl Iterator<Item = Value> {
    Kind::ALL.iter().filter(|kind| !kind.is_legacy()).filter_map(|kind| definition(*kind))
}

/// The definitions of legacy kinds, for clusters that still have such objects.
pub fn legacy_definitions() -> impl Iterator<Item = Value> {
    Kind::ALL.iter().filter(|kind| kind.is_legacy()).filter_map(|kind| definition(*kind))
}

/// Printer columns for kubectl, as in upstream's definitions. Without any, kubectl shows name and age.
fn columns(kind: Kind) -> Vec<Value> {
    let column = |(name, path): &(&str, &str)| {
        let kind = if *name == "Age" { "date" } else { "string" };
        json!({"name": name, "type": kind, "jsonPath": path})
    };
    kind.traits().columns.iter().map(column).collect()
}

/// The category of a group for kubectl, such as `networking-istio-io`.
fn category(group: &str) -> String {
    group.replace('.', "-")
}

fn anything() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// `around` are the enclosing messages, because some are recursive.
fn message_schema(message: &MessageDescriptor, around: &mut Vec<String>) -> Value {
    if let Some(known) = well_known(message.full_name()) {
        return known;
    }
    if around.len() >= DEEPEST || around.iter().any(|name| name == message.full_name()) {
        return anything();
    }
    around.push(message.full_name().to_owned());
    let properties: Map<String, Value> =
        message.fields().map(|field| (field.json_name().to_owned(), field_schema(&field, around))).collect();
    around.pop();
    match properties.is_empty() {
        true => json!({"type": "object"}),
        false => json!({"type": "object", "properties": properties}),
    }
}

fn field_schema(field: &FieldDescriptor, around: &mut Vec<String>) -> Value {
    if let (true, FieldKind::Message(entry)) = (field.is_map(), field.kind()) {
        let values = entry.map_entry_value_field();
        return json!({"type": "object", "additionalProperties": value_schema(&values.kind(), around)});
    }
    let value = value_schema(&field.kind(), around);
    match field.is_list() {
        true => json!({"type": "array", "items": value}),
        false => value,
    }
}

fn value_schema(kind: &FieldKind, around: &mut Vec<String>) -> Value {
    match kind {
        FieldKind::Message(message) => message_schema(message, around),
        // By name or by number.
        FieldKind::Enum(_) => json!({"x-kubernetes-int-or-string": true}),
        FieldKind::Bool => json!({"type": "boolean"}),
        FieldKind::Float | FieldKind::Double => json!({"type": "number"}),
        FieldKind::String | FieldKind::Bytes => json!({"type": "string"}),
        // Protobuf JSON writes 64-bit numbers as strings too.
        FieldKind::Int64 | FieldKind::Uint64 | FieldKind::Sint64 | FieldKind::Fixed64 | FieldKind::Sfixed64 => {
            json!({"x-kubernetes-int-or-string": true})
        }
        FieldKind::Uint32 | FieldKind::Fixed32 => json!({"type": "integer", "minimum": 0, "maximum": u32::MAX}),
        FieldKind::Int32 | FieldKind::Sint32 | FieldKind::Sfixed32 => json!({"type": "integer", "format": "int32"}),
    }
}

/// Messages with a special form in protobuf JSON.
fn well_known(name: &str) -> Option<Value> {
    Some(match name.strip_prefix("google.protobuf.")? {
        "Duration" | "Timestamp" | "StringValue" | "BytesValue" | "FieldMask" => json!({"type": "string"}),
        "BoolValue" => json!({"type": "boolean"}),
        "FloatValue" | "DoubleValue" => json!({"type": "number"}),
        "Int32Value" => json!({"type": "integer", "format": "int32"}),
        "UInt32Value" => json!({"type": "integer", "minimum": 0, "maximum": u32::MAX}),
        "Int64Value" | "UInt64Value" => json!({"x-kubernetes-int-or-string": true}),
        "Struct" | "Any" | "Empty" => anything(),
        "Value" => json!({"x-kubernetes-preserve-unknown-fields": true}),
        "ListValue" => json!({"type": "array", "items": {"x-kubernetes-preserve-unknown-fields": true}}),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{definition, definitions, legacy_definitions};
    use crate::config::Kind;

    #[test]
    fn every_kind_of_istio_is_defined_once() {
        let names: Vec<String> =
            definitions().map(|d| d["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect();
        assert_eq!(names.len(), 15);
        assert_eq!(names[0], "virtualservices.networking.istio.io");
        assert_eq!(definition(Kind::HttpRoute), None);
    }

    #[test]
    fn legacy_kinds_are_defined_apart() {
        let found: Vec<(String, String)> = legacy_definitions()
            .map(|d| [&d["metadata"]["name"], &d["spec"]["scope"]].map(|v| v.as_str().unwrap_or_default().to_owned()))
            .map(|[name, scope]| (name, scope))
            .collect();
        assert_eq!(found.len(), 20);
        for (name, scope) in [
            ("routerules.config.istio.io", "Namespaced"),
            ("meshpolicies.authentication.istio.io", "Cluster"),
            ("clusterrbacconfigs.rbac.istio.io", "Cluster"),
            ("servicerolebindings.rbac.istio.io", "Namespaced"),
        ] {
            assert!(found.contains(&(name.to_owned(), scope.to_owned())), "{name} in {found:?}");
        }
    }

    #[test]
    fn definitions_have_printer_columns() {
        let of = |kind: Kind| definition(kind).expect("one of ours")["spec"].clone();
        let columns = of(Kind::VirtualService)["versions"][1]["additionalPrinterColumns"].clone();
        let names: Vec<&str> = columns.as_array().into_iter().flatten().filter_map(|c| c["name"].as_str()).collect();
        assert_eq!(names, ["Gateways", "Hosts", "Age"]);
        assert_eq!(columns[2]["type"], json!("date"));
        assert_eq!(of(Kind::PeerAuthentication)["names"]["shortNames"], json!(["pa"]));
        assert!(of(Kind::Sidecar)["versions"][0].get("additionalPrinterColumns").is_none());
    }

    #[test]
    fn fields_have_the_types_of_documents() {
        let defined = definition(Kind::VirtualService).expect("one of ours");
        let version = &defined["spec"]["versions"][0];
        assert_eq!((&version["name"], &version["storage"]), (&json!("v1"), &json!(true)));
        let http = &version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["http"];
        let fields = &http["items"]["properties"];
        assert_eq!(fields["timeout"], json!({"type": "string"}));
        assert_eq!(fields["match"]["items"]["properties"]["port"]["type"], json!("integer"));
        assert_eq!(fields["headers"]["properties"]["request"]["properties"]["set"]["type"], json!("object"));
        assert_eq!(fields["corsPolicy"]["properties"]["allowCredentials"], json!({"type": "boolean"}));
    }

    #[test]
    fn arbitrary_json_is_preserved() {
        let defined = definition(Kind::EnvoyFilter).expect("one of ours");
        let spec = &defined["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let patch = &spec["properties"]["configPatches"]["items"]["properties"]["patch"];
        assert_eq!(patch["properties"]["value"]["x-kubernetes-preserve-unknown-fields"], json!(true));
    }
}
