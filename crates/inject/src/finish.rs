//! The last steps of an injection: cluster and network, status, order of containers.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::annotations::STATUS;
use crate::pod::{self, ContainerList, INIT, JsonMap, PROXY, VALIDATION};

/// Init container of older templates that enables core dumps.
const CORE_DUMP: &str = "enable-core-dump";

/// Sets environment variables of the proxy's container; existing ones of the same name are replaced.
pub(crate) fn set_environment(pod: &mut Value, variables: &BTreeMap<String, String>) {
    let Some(proxy) = pod::proxy_mut(pod).filter(|_| !variables.is_empty()) else { return };
    let env = pod::list_at(proxy, "env");
    env.retain(|entry| !variables.contains_key(pod::text(entry, "name")));
    env.extend(variables.iter().map(|(name, value)| json!({"name": name, "value": value})));
}

/// Sets the status annotation, which lists the containers and volumes that the templates added.
pub(crate) fn set_status(pod: &mut Value, template: &Value, revision: &str) {
    let names = |field: &str| {
        let list = template.get("spec").and_then(|spec| spec.get(field)).and_then(Value::as_array);
        let names: Vec<&str> = list.into_iter().flatten().map(|entry| pod::text(entry, "name")).collect();
        if names.is_empty() { Value::Null } else { json!(names) }
    };
    let mut status = JsonMap::new();
    for field in ["initContainers", "containers", "volumes", "imagePullSecrets"] {
        status.insert(field.to_owned(), names(field));
    }
    status.insert("revision".to_owned(), if revision.is_empty() { "default" } else { revision }.into());
    let text = Value::Object(status).to_string();
    pod::marks_mut(pod, "annotations").insert(STATUS.to_owned(), text.into());
}

/// Puts the proxy last, or first if the application waits for it, and the redirection where it does not block the
/// user's init containers.
pub(crate) fn order(pod: &mut Value, proxy_first: bool) {
    if let Some(containers) = pod::containers_mut(pod, ContainerList::Containers) {
        move_to(containers, PROXY, proxy_first);
    }
    let is_native = pod::container(pod, ContainerList::InitContainers, PROXY).is_some();
    let Some(containers) = pod::containers_mut(pod, ContainerList::InitContainers) else { return };
    if is_native {
        for name in [CORE_DUMP, PROXY, VALIDATION, INIT] {
            move_to(containers, name, true);
        }
    } else {
        move_to(containers, VALIDATION, true);
        move_to(containers, INIT, false);
        move_to(containers, CORE_DUMP, false);
    }
}

fn move_to(containers: &mut Vec<Value>, name: &str, first: bool) {
    let Some(at) = containers.iter().position(|container| pod::text(container, "name") == name) else { return };
    let container = containers.remove(at);
    let place = if first { 0 } else { containers.len() };
    containers.insert(place, container);
}
