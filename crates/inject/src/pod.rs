//! Pods as JSON: access to metadata and containers. Fields that this crate does not know stay as they are.

use serde_json::{Map, Value, json};

pub(crate) type JsonMap = Map<String, Value>;

/// Name of the proxy's container.
pub(crate) const PROXY: &str = "istio-proxy";
/// Init container that redirects traffic.
pub(crate) const INIT: &str = "istio-init";
/// Init container that checks the redirection made by a CNI plug-in.
pub(crate) const VALIDATION: &str = "istio-validation";

/// One of the two lists of containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContainerList {
    Containers,
    InitContainers,
}

impl ContainerList {
    pub(crate) const BOTH: [ContainerList; 2] = [ContainerList::Containers, ContainerList::InitContainers];

    pub(crate) fn field(self) -> &'static str {
        match self {
            ContainerList::Containers => "containers",
            ContainerList::InitContainers => "initContainers",
        }
    }
}

/// A string field, or "".
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// A string entry of `metadata.labels` or `metadata.annotations`.
pub(crate) fn mark<'a>(pod: &'a Value, kind: &str, name: &str) -> Option<&'a str> {
    pod.get("metadata")?.get(kind)?.get(name)?.as_str()
}

pub(crate) fn annotation<'a>(pod: &'a Value, name: &str) -> Option<&'a str> {
    mark(pod, "annotations", name)
}

pub(crate) fn label<'a>(pod: &'a Value, name: &str) -> Option<&'a str> {
    mark(pod, "labels", name)
}

/// `metadata.labels` or `metadata.annotations`, made if absent.
pub(crate) fn marks_mut<'a>(pod: &'a mut Value, kind: &str) -> &'a mut JsonMap {
    object_at(object_at(object(pod), "metadata"), kind)
}

/// The map itself; a value that is none becomes an empty one.
pub(crate) fn object(value: &mut Value) -> &mut JsonMap {
    if !value.is_object() {
        *value = json!({});
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

/// The map in a field, made if absent.
pub(crate) fn object_at<'a>(map: &'a mut JsonMap, field: &str) -> &'a mut JsonMap {
    object(map.entry(field).or_insert_with(|| json!({})))
}

/// The list in a field, made if absent.
pub(crate) fn list_at<'a>(map: &'a mut JsonMap, field: &str) -> &'a mut Vec<Value> {
    let value = map.entry(field).or_insert_with(|| json!([]));
    if !value.is_array() {
        *value = json!([]);
    }
    match value {
        Value::Array(list) => list,
        _ => unreachable!("made a list above"),
    }
}

/// Containers of a pod, an empty slice if there are none.
pub(crate) fn containers(pod: &Value, list: ContainerList) -> &[Value] {
    let found = pod.get("spec").and_then(|spec| spec.get(list.field())).and_then(Value::as_array);
    found.map_or(&[], Vec::as_slice)
}

pub(crate) fn containers_mut(pod: &mut Value, list: ContainerList) -> Option<&mut Vec<Value>> {
    pod.get_mut("spec")?.get_mut(list.field())?.as_array_mut()
}

pub(crate) fn container<'a>(pod: &'a Value, list: ContainerList, name: &str) -> Option<&'a Value> {
    containers(pod, list).iter().find(|container| text(container, "name") == name)
}

/// The proxy's container, wherever it is.
pub(crate) fn proxy(pod: &Value) -> Option<&Value> {
    ContainerList::BOTH.into_iter().find_map(|list| container(pod, list, PROXY))
}

pub(crate) fn proxy_mut(pod: &mut Value) -> Option<&mut JsonMap> {
    let list = ContainerList::BOTH.into_iter().find(|list| container(pod, *list, PROXY).is_some())?;
    let found = containers_mut(pod, list)?.iter_mut().find(|container| text(container, "name") == PROXY)?;
    found.as_object_mut()
}

/// Appends an environment variable to a container.
pub(crate) fn push_env(container: &mut JsonMap, name: &str, value: &str) {
    list_at(container, "env").push(json!({"name": name, "value": value}));
}

/// The value of an environment variable of a container.
pub(crate) fn env<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    let all = container.get("env")?.as_array()?;
    all.iter().rev().find(|entry| text(entry, "name") == name)?.get("value")?.as_str()
}
