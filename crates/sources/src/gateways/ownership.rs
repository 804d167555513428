//! Whether an existing object is ours to write, and which of its fields we own.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::{FIELD_MANAGER, MANAGED_LABEL};

const APPLY: &str = "Apply";
/// Other controllers of the same gateways, whose fields we take over.
const PREDECESSORS: [&str; 1] = ["istio.io/gateway-controller"];

/// Why an object is not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotOurs {
    #[error("it exists and was not made for a Gateway (it has no label {MANAGED_LABEL}); it is left unchanged")]
    Unlabelled,
    #[error("it belongs to Gateway {0}; it is left unchanged")]
    OtherGateway(String),
    #[error("it belongs to a deleted Gateway of the same name; waiting until it is gone")]
    DeletedGateway,
    #[error("it is being deleted; waiting until it is gone")]
    Deleting,
}

/// Checks that an existing object may be written for a Gateway.
pub(super) fn check(object: &ObjectMeta, gateway: &str, gateway_uid: &str) -> Result<(), NotOurs> {
    if !object.labels.as_ref().is_some_and(|labels| labels.contains_key(MANAGED_LABEL)) {
        return Err(NotOurs::Unlabelled);
    }
    let owners = object.owner_references.iter().flatten().filter(|owner| owner.kind == "Gateway");
    let owners: Vec<_> = owners.collect();
    if !owners.is_empty() && !owners.iter().any(|owner| owner.uid == gateway_uid) {
        let other = owners.first().map(|owner| owner.name.clone()).unwrap_or_default();
        return Err(if other == gateway { NotOurs::DeletedGateway } else { NotOurs::OtherGateway(other) });
    }
    if object.deletion_timestamp.is_some() {
        return Err(NotOurs::Deleting);
    }
    Ok(())
}

/// Hash of the fields that we own; another one means that another writer changed or removed one of them.
pub(super) fn owned_fields(object: &ObjectMeta) -> Option<u64> {
    let entry = object.managed_fields.iter().flatten().find(|entry| is_apply_of(entry, FIELD_MANAGER))?;
    let fields = entry.fields_v1.as_ref().map(|fields| fields.0.to_string()).unwrap_or_default();
    Some(xxh3_64(fields.as_bytes()))
}

/// The entries of `managedFields` after we took over from another controller of the same gateways; `None` if there is
/// none. Fields of it that we do not apply are then removed, as its own would be.
pub(super) fn taken_over(object: &ObjectMeta) -> Option<Vec<ManagedFieldsEntry>> {
    let entries = object.managed_fields.as_ref()?;
    let is_theirs = |entry: &&ManagedFieldsEntry| PREDECESSORS.iter().any(|name| is_apply_of(entry, name));
    let theirs = entries.iter().find(is_theirs)?;
    let ours = entries.iter().find(|entry| is_apply_of(entry, FIELD_MANAGER));
    let mut merged = ManagedFieldsEntry { manager: Some(FIELD_MANAGER.to_owned()), ..theirs.clone() };
    if let Some(ours) = ours.filter(|ours| ours.api_version == theirs.api_version)
        && let (Some(all), Some(own)) = (&mut merged.fields_v1, &ours.fields_v1)
    {
        unite(&mut all.0, &own.0);
    }
    let others = entries.iter().filter(|entry| !is_theirs(entry) && !is_apply_of(entry, FIELD_MANAGER));
    Some(others.cloned().chain([merged]).collect())
}

fn is_apply_of(entry: &ManagedFieldsEntry, manager: &str) -> bool {
    entry.manager.as_deref() == Some(manager)
        && entry.operation.as_deref() == Some(APPLY)
        && entry.subresource.as_deref().unwrap_or_default().is_empty()
}

/// Adds the fields of a set to another.
fn unite(all: &mut Value, more: &Value) {
    if let (Value::Object(all), Value::Object(more)) = (all, more) {
        for (name, inner) in more {
            unite(all.entry(name.clone()).or_insert_with(|| Value::Object(serde_json::Map::new())), inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use serde_json::{Value, json};

    use super::{NotOurs, check, owned_fields, taken_over};

    fn meta(value: Value) -> ObjectMeta {
        serde_json::from_value(value).expect("metadata")
    }

    fn entry(manager: &str, operation: &str, fields: Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    #[test]
    fn only_objects_of_this_gateway_are_written() {
        let labels = json!({"gateway.istio.io/managed": "x"});
        let owner = |name: &str, uid: &str| json!([{"apiVersion": "v1", "kind": "Gateway", "name": name, "uid": uid}]);
        for (object, expected) in [
            (json!({}), Err(NotOurs::Unlabelled)),
            (json!({"labels": {"a": "b"}, "ownerReferences": owner("front", "1")}), Err(NotOurs::Unlabelled)),
            (json!({"labels": labels}), Ok(())),
            (json!({"labels": labels, "ownerReferences": owner("front", "1")}), Ok(())),
            (json!({"labels": labels, "ownerReferences": owner("front", "2")}), Err(NotOurs::DeletedGateway)),
            (
                json!({"labels": labels, "ownerReferences": owner("back", "2")}),
                Err(NotOurs::OtherGateway("back".to_owned())),
            ),
            (json!({"labels": labels, "deletionTimestamp": "2026-01-01T00:00:00Z"}), Err(NotOurs::Deleting)),
        ] {
            assert_eq!(check(&meta(object.clone()), "front", "1"), expected, "{object}");
        }
    }

    #[test]
    fn writes_of_others_do_not_change_what_we_own() {
        let ours = entry("pilotage-gateway-controller", "Apply", json!({"f:spec": {"f:type": {}}}));
        let before = owned_fields(&meta(json!({"managedFields": [ours]})));
        let status = entry("kube-controller-manager", "Update", json!({"f:status": {}}));
        assert_eq!(owned_fields(&meta(json!({"managedFields": [status, ours]}))), before);
        let less = entry("pilotage-gateway-controller", "Apply", json!({"f:spec": {}}));
        assert_ne!(owned_fields(&meta(json!({"managedFields": [less]}))), before);
        assert!(before.is_some());
        assert_eq!(owned_fields(&meta(json!({}))), None);
    }

    #[test]
    fn fields_of_another_controller_become_ours() {
        let theirs = entry("istio.io/gateway-controller", "Apply", json!({"f:spec": {"f:a": {}}}));
        let user = entry("kubectl", "Apply", json!({"f:spec": {"f:b": {}}}));
        let ours = entry("pilotage-gateway-controller", "Apply", json!({"f:spec": {"f:c": {}}}));
        assert_eq!(taken_over(&meta(json!({"managedFields": [user, ours]}))), None);
        let entries = taken_over(&meta(json!({"managedFields": [theirs, user, ours]}))).expect("taken over");
        let expected = entry("pilotage-gateway-controller", "Apply", json!({"f:spec": {"f:a": {}, "f:c": {}}}));
        assert_eq!(serde_json::to_value(&entries).expect("JSON"), json!([user, expected]));
    }
}
