//! Server-side apply and field managers on small objects.

use serde_json::{Value, json};

use super::{FieldManager, apply, record_update};
use crate::error::ApiError;
use crate::resource::ResourceTable;
use crate::schema::Schema;

fn manager(name: &str) -> FieldManager {
    FieldManager {
        name: name.to_owned(),
        api_version: "v1".to_owned(),
        subresource: "",
        time: "2026-01-02T03:04:05Z".to_owned(),
    }
}

fn schema(kind: &str) -> Schema<'static> {
    Schema::of(&ResourceTable::get().by_kind("v1", kind).expect("a core kind").schema)
}

fn applied(live: &Value, kind: &str, object: Value, name: &str) -> Result<Value, ApiError> {
    apply(live, &object, &manager(name), false, schema(kind))
}

fn config_map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "shop"}, "data": data})
}

#[test]
fn fields_that_are_not_applied_any_more_are_removed() {
    let first = applied(&Value::Null, "ConfigMap", config_map(json!({"a": "1", "b": "2"})), "me").unwrap();
    let fields = &first["metadata"]["managedFields"][0];
    assert_eq!(fields["fieldsV1"], json!({"f:data": {"f:a": {}, "f:b": {}}}));
    assert_eq!((&fields["operation"], &fields["manager"]), (&json!("Apply"), &json!("me")));
    let second = applied(&first, "ConfigMap", config_map(json!({"a": "3"})), "me").unwrap();
    assert_eq!(second["data"], json!({"a": "3"}));
    let third = applied(&second, "ConfigMap", config_map(json!({})), "me").unwrap();
    assert!(third["data"].as_object().is_none_or(|data| data.is_empty()), "{third}");
}

#[test]
fn fields_of_two_managers_live_next_to_each_other() {
    let first = applied(&Value::Null, "ConfigMap", config_map(json!({"a": "1"})), "me").unwrap();
    let second = applied(&first, "ConfigMap", config_map(json!({"b": "2"})), "you").unwrap();
    assert_eq!(second["data"], json!({"a": "1", "b": "2"}));
    let third = applied(&second, "ConfigMap", config_map(json!({"a": "1", "b": "2"})), "me").unwrap();
    let fourth = applied(&third, "ConfigMap", config_map(json!({"a": "1"})), "me").unwrap();
    assert_eq!(fourth["data"], json!({"a": "1", "b": "2"}), "b is still managed by you");
}

#[test]
fn a_field_of_another_manager_is_a_conflict_unless_forced() {
    let mut live = config_map(json!({"a": "1", "b": "2"}));
    record_update(&Value::Null, &mut live, &manager("kubectl-edit"), schema("ConfigMap"));
    let error = applied(&live, "ConfigMap", config_map(json!({"a": "9"})), "me").unwrap_err();
    assert_eq!(error.message, "Apply failed with 1 conflict: conflict with \"kubectl-edit\" using v1: .data.a");
    let causes = &error.details.expect("causes")["causes"];
    assert_eq!(
        *causes,
        json!([{"reason": "FieldManagerConflict", "message": "conflict with \"kubectl-edit\" using v1", "field": ".data.a"}])
    );
    let forced = apply(&live, &config_map(json!({"a": "9"})), &manager("me"), true, schema("ConfigMap")).unwrap();
    assert_eq!(forced["data"], json!({"a": "9", "b": "2"}));
    let owners: Vec<&Value> = forced["metadata"]["managedFields"].as_array().into_iter().flatten().collect();
    assert_eq!(owners.len(), 2);
    assert_eq!(owners[1]["fieldsV1"], json!({"f:data": {".": {}, "f:b": {}}}));
}

#[test]
fn the_same_value_is_shared_without_a_conflict() {
    let first = applied(&Value::Null, "ConfigMap", config_map(json!({"a": "1"})), "me").unwrap();
    let second = applied(&first, "ConfigMap", config_map(json!({"a": "1"})), "you").unwrap();
    assert_eq!(second["metadata"]["managedFields"].as_array().map(Vec::len), Some(2));
    let error = applied(&second, "ConfigMap", config_map(json!({"a": "2"})), "me").unwrap_err();
    assert_eq!(error.message, "Apply failed with 1 conflict: conflict with \"you\": .data.a");
}

fn service(ports: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": ports}})
}

#[test]
fn items_of_a_list_are_merged_by_their_keys() {
    let ports = json!([{"port": 80, "protocol": "TCP", "name": "http"}]);
    let first = applied(&Value::Null, "Service", service(ports), "me").unwrap();
    assert_eq!(
        first["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:ports"],
        json!({"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}}})
    );
    // The protocol is a default, so this is another item.
    let second = applied(&first, "Service", service(json!([{"port": 90, "name": "other"}])), "you").unwrap();
    let numbers = |object: &Value| -> Vec<i64> {
        object["spec"]["ports"].as_array().into_iter().flatten().filter_map(|port| port["port"].as_i64()).collect()
    };
    assert_eq!(numbers(&second), [80, 90]);
    let third = applied(&second, "Service", service(json!([{"port": 91}])), "you").unwrap();
    assert_eq!(numbers(&third), [80, 91]);
}

#[test]
fn an_update_takes_fields_from_managers_that_applied_them() {
    let first = applied(&Value::Null, "ConfigMap", config_map(json!({"a": "1", "b": "2"})), "me").unwrap();
    let mut edited = first.clone();
    edited["data"] = json!({"a": "5", "b": "2"});
    record_update(&first, &mut edited, &manager("editor"), schema("ConfigMap"));
    let entries = edited["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let fields: Vec<&Value> = entries.iter().map(|entry| &entry["fieldsV1"]).collect();
    assert_eq!(fields, [&json!({"f:data": {"f:b": {}}}), &json!({"f:data": {"f:a": {}}})]);
}

#[test]
fn managers_are_bounded() {
    let mut live = config_map(json!({}));
    for number in 0..30 {
        let mut next = live.clone();
        next["data"][format!("k{number}")] = "v".into();
        record_update(&live, &mut next, &manager(&format!("m{number}")), schema("ConfigMap"));
        live = next;
    }
    let entries = live["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    assert_eq!(entries.len(), 10);
    assert_eq!(entries[0]["manager"], json!("ancient-changes"));
}
