//! Structural schemas: navigation for patches and apply, and the check of objects for unknown fields and wrong types.

pub(crate) mod check;
pub(crate) mod core;
pub(crate) mod duplicates;

use serde_json::{Value, json};

/// The schema of a value; of an unknown value where there is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schema<'a>(Option<&'a Value>);

/// How the items of a list are distinguished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListKind<'a> {
    /// The list is one value.
    Atomic,
    /// Items are scalars, each at most once.
    Set,
    /// Items are objects with these key fields.
    Map(Vec<&'a str>),
}

impl<'a> Schema<'a> {
    pub(crate) fn of(schema: &'a Value) -> Schema<'a> {
        Schema(Some(schema))
    }

    fn keyword(self, key: &str) -> Option<&'a Value> {
        self.0?.get(key)
    }

    fn flag(self, key: &str) -> bool {
        self.keyword(key) == Some(&Value::Bool(true))
    }

    /// The schema of a field; `None` if objects may not have it.
    pub(crate) fn field(self, name: &str) -> Option<Schema<'a>> {
        if self.0.is_none() {
            return Some(self);
        }
        if let Some(known) = self.keyword("properties").and_then(|all| all.get(name)) {
            return Some(Schema(Some(known)));
        }
        if let Some(values) = self.keyword("additionalProperties").filter(|values| values.is_object()) {
            return Some(Schema(Some(values)));
        }
        let is_open = self.flag("x-kubernetes-preserve-unknown-fields") || self.keyword("properties").is_none();
        is_open.then_some(Schema(None))
    }

    /// The schema of a field, or of an unknown value.
    pub(crate) fn field_or_any(self, name: &str) -> Schema<'a> {
        self.field(name).unwrap_or(Schema(None))
    }

    pub(crate) fn items(self) -> Schema<'a> {
        Schema(self.keyword("items"))
    }

    /// The type that JSON values must have.
    pub(crate) fn kind(self) -> Option<&'a str> {
        self.keyword("type").and_then(Value::as_str)
    }

    pub(crate) fn is_atomic_map(self) -> bool {
        self.keyword("x-kubernetes-map-type").and_then(Value::as_str) == Some("atomic")
    }

    pub(crate) fn list_kind(self) -> ListKind<'a> {
        match self.keyword("x-kubernetes-list-type").and_then(Value::as_str) {
            Some("set") => ListKind::Set,
            Some("map") => {
                let keys = self.keyword("x-kubernetes-list-map-keys").and_then(Value::as_array);
                ListKind::Map(keys.into_iter().flatten().filter_map(Value::as_str).collect())
            }
            _ => ListKind::Atomic,
        }
    }

    /// The key of a strategic merge patch: lists without one are replaced.
    pub(crate) fn merge_key(self) -> Option<&'a str> {
        self.keyword("x-kubernetes-patch-merge-key").and_then(Value::as_str)
    }

    /// Whether a strategic merge patch merges this list of scalars.
    pub(crate) fn merges_scalars(self) -> bool {
        self.merge_key().is_none() && self.keyword("x-kubernetes-patch-strategy").is_some()
    }

    /// The default of a field of the items.
    pub(crate) fn default_of(self, field: &str) -> Option<&'a Value> {
        self.keyword("properties")?.get(field)?.get("default")
    }
}

/// The schema of whole objects: `body` with the fields that every object has.
pub(crate) fn whole(mut body: Value) -> Value {
    body["type"] = "object".into();
    body["properties"]["apiVersion"] = json!({"type": "string"});
    body["properties"]["kind"] = json!({"type": "string"});
    body["properties"]["metadata"] = metadata();
    body
}

/// The schema of metadata.
pub(crate) fn metadata() -> Value {
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    json!({
        "type": "object",
        "description": "Name, namespace, labels, annotations and what the server records about the object.",
        "properties": {
            "name": {"type": "string"},
            "generateName": {"type": "string"},
            "namespace": {"type": "string"},
            "labels": texts,
            "annotations": texts,
            "uid": {"type": "string"},
            "resourceVersion": {"type": "string"},
            "generation": {"type": "integer", "format": "int64"},
            "creationTimestamp": {"type": "string", "format": "date-time"},
            "deletionTimestamp": {"type": "string", "format": "date-time"},
            "deletionGracePeriodSeconds": {"type": "integer", "format": "int64"},
            "selfLink": {"type": "string"},
            "finalizers": {
                "type": "array", "items": {"type": "string"},
                "x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge",
            },
            "ownerReferences": {
                "type": "array",
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"],
                "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "uid",
                "items": {
                    "type": "object",
                    "x-kubernetes-map-type": "atomic",
                    "properties": {
                        "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "name": {"type": "string"},
                        "uid": {"type": "string"}, "controller": {"type": "boolean"},
                        "blockOwnerDeletion": {"type": "boolean"},
                    },
                },
            },
            "managedFields": {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
        },
    })
}

/// The schema of kinds whose fields the model reads without a descriptor. Lists with keys are those of the Gateway API.
pub(crate) fn gateway_api(kind: &str) -> Value {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let named = |key: &str| {
        json!({
            "type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key],
        })
    };
    let with =
        |fields: Value| json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": fields});
    let spec = match kind {
        "Gateway" | "ListenerSet" => with(json!({"listeners": named("name")})),
        _ => open,
    };
    let status = match kind {
        "Gateway" => with(json!({"conditions": named("type"), "listeners": named("name")})),
        _ => with(json!({"conditions": named("type")})),
    };
    json!({"type": "object", "properties": {"spec": spec, "status": status}})
}
