//! Containers that both the user and a template have: the user's part is merged over the template's, and stored in an
//! annotation so that the pod can be injected again.

use serde_json::{Map, Value, json};

use crate::annotations::{OVERRIDES, STATUS};
use crate::error::InjectError;
use crate::merge::merge;
use crate::pod::{self, ContainerList, INIT, JsonMap, PROXY, VALIDATION};

/// Image of a user's container that keeps the template's.
const AUTO_IMAGE: &str = "auto";

/// A pod without the parts of an earlier injection, and those of its parts that the next injection needs.
pub(crate) struct StrippedPod {
    pub(crate) pod: Value,
    /// The proxy of the earlier injection; null if there was none.
    pub(crate) earlier_proxy: Value,
    pub(crate) was_injected: bool,
}

/// Takes the containers of an earlier injection out of a pod and puts the user's overrides back.
pub(crate) fn strip(pod: &Value) -> Result<StrippedPod, InjectError> {
    let mut stripped = pod.clone();
    let status = pod::annotation(pod, STATUS).and_then(|text| serde_json::from_str::<Value>(text).ok());
    let overrides = stored(pod)?;
    let Some(status) = status.filter(Value::is_object) else {
        return Ok(StrippedPod { pod: stripped, earlier_proxy: Value::Null, was_injected: false });
    };
    for list in ContainerList::BOTH {
        let injected = status.get(list.field()).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let Some(containers) = pod::containers_mut(&mut stripped, list) else { continue };
        let original = |container: Value| {
            let name = container.get("name").cloned().unwrap_or_default();
            if !injected.contains(&name) {
                return Some(container);
            }
            // In its place, so that the order stays.
            overridden(&overrides, list).find(|known| known.get("name") == Some(&name)).cloned()
        };
        *containers = std::mem::take(containers).into_iter().filter_map(original).collect();
    }
    pod::marks_mut(&mut stripped, "annotations").shift_remove(STATUS);
    let earlier_proxy = pod::proxy(pod).cloned().unwrap_or_default();
    Ok(StrippedPod { pod: stripped, earlier_proxy, was_injected: true })
}

/// The overrides that an earlier injection stored.
fn stored(pod: &Value) -> Result<Value, InjectError> {
    let Some(text) = pod::annotation(pod, OVERRIDES) else { return Ok(Value::Null) };
    let read = serde_json::from_str::<Value>(text).map_err(|error| InjectError::Overrides(error.to_string()))?;
    if !read.is_object() {
        return Err(InjectError::Overrides("expected a map".to_owned()));
    }
    Ok(read)
}

fn overridden(overrides: &Value, list: ContainerList) -> impl Iterator<Item = &Value> {
    overrides.get(list.field()).and_then(Value::as_array).into_iter().flatten()
}

/// Merges the user's containers over those of the template that have the same name, and stores them as overrides.
pub(crate) fn reapply(merged: &mut Value, user: &StrippedPod, template: &Value) {
    let mut overrides = JsonMap::new();
    for list in ContainerList::BOTH {
        let mut found = Vec::new();
        for container in pod::containers(template, list) {
            let name = pod::text(container, "name");
            let own = match list {
                ContainerList::Containers => pod::container(&user.pod, list, name),
                // A native sidecar is an init container, the user writes it as an ordinary one.
                ContainerList::InitContainers => pod::container(&user.pod, ContainerList::Containers, name)
                    .or_else(|| pod::container(&user.pod, list, name)),
            };
            found.extend(own.map(without_auto_image));
        }
        if !found.is_empty() {
            let overlay = json!({"spec": {list.field(): found}});
            if let (Value::Object(base), Value::Object(overlay)) = (&mut *merged, overlay) {
                merge(base, overlay);
            }
            overrides.insert(list.field().to_owned(), found.into());
        }
    }
    if !overrides.is_empty() && !user.was_injected {
        let text = Value::Object(overrides).to_string();
        pod::marks_mut(merged, "annotations").insert(OVERRIDES.to_owned(), text.into());
    }
}

fn without_auto_image(container: &Value) -> Value {
    let mut container = container.clone();
    if pod::text(&container, "image") == AUTO_IMAGE {
        pod::object(&mut container).shift_remove("image");
    }
    container
}

/// User and group that the pod sets for the proxy.
struct ProxyUser {
    user: Option<i64>,
    group: Option<i64>,
}

impl ProxyUser {
    fn of(pod: &Value) -> Option<ProxyUser> {
        let context = pod::proxy(pod)?.get("securityContext")?;
        let id = |field: &str| context.get(field).and_then(Value::as_i64);
        let found = ProxyUser { user: id("runAsUser"), group: id("runAsGroup") };
        (found.user.is_some() || found.group.is_some()).then_some(found)
    }
}

/// Applies the pod's user and group for the proxy: redirection must exclude the traffic of that user.
pub(crate) fn apply_proxy_user(merged: &mut Value, user: &Value, is_tproxy: bool) {
    let Some(ids) = ProxyUser::of(user) else { return };
    let init = [INIT, VALIDATION]
        .into_iter()
        .find(|name| pod::container(merged, ContainerList::InitContainers, name).is_some());
    let Some(init) = init else { return };
    if is_tproxy && ids.user.is_some() {
        // TPROXY needs root.
        if let Some(proxy) = pod::proxy_mut(merged) {
            pod::object_at(proxy, "securityContext").insert("runAsUser".to_owned(), json!(0));
        }
    }
    let containers = pod::containers_mut(merged, ContainerList::InitContainers).into_iter().flatten();
    for container in containers.filter(|container| pod::text(container, "name") == init) {
        let Value::Object(map) = container else { continue };
        if !is_tproxy && init == VALIDATION {
            run_as(pod::object_at(map, "securityContext"), &ids);
        }
        if let Some(id) = ids.user.filter(|id| *id != 0) {
            replace_flag(map, "-u", &id.to_string());
        }
    }
}

fn run_as(context: &mut Map<String, Value>, ids: &ProxyUser) {
    for (field, id) in [("runAsUser", ids.user), ("runAsGroup", ids.group)] {
        if let Some(id) = id {
            context.insert(field.to_owned(), id.into());
        }
    }
}

fn replace_flag(container: &mut JsonMap, flag: &str, value: &str) {
    let arguments = pod::list_at(container, "args");
    let place = arguments.iter().position(|argument| argument.as_str() == Some(flag));
    if let Some(argument) = place.and_then(|at| arguments.get_mut(at + 1)) {
        *argument = value.into();
    }
}

/// A user's container for the proxy becomes an init container if the template has it there.
pub(crate) fn move_native_proxy(merged: &mut Value, template: &Value) {
    if pod::container(template, ContainerList::InitContainers, PROXY).is_none() {
        return;
    }
    let Some(containers) = pod::containers_mut(merged, ContainerList::Containers) else { return };
    let Some(at) = containers.iter().position(|container| pod::text(container, "name") == PROXY) else { return };
    let proxy = containers.remove(at);
    let spec = pod::object_at(pod::object(merged), "spec");
    pod::list_at(spec, ContainerList::InitContainers.field()).push(proxy);
}
