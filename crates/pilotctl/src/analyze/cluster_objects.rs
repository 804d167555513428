//! Services and what they select, read from texts with Kubernetes objects. Config kinds are read elsewhere.

use model::config::read_yaml;
use serde_json::Value;
use sources::kubernetes::schema::ClusterObject;

use super::gather::parts;

/// Services, EndpointSlices, Pods, Nodes, Namespaces and Secrets of a text. Documents that cannot be parsed are reported elsewhere.
pub(crate) fn cluster_objects(text: &str, namespace: &str) -> Vec<ClusterObject> {
    let documents = parts(text).into_iter().filter_map(|(_, part)| read_yaml(part).ok());
    let items = documents.flat_map(|document| match document {
        Value::Object(mut list) if list.get("kind").and_then(Value::as_str) == Some("List") => {
            match list.shift_remove("items") {
                Some(Value::Array(items)) => items,
                _ => Vec::new(),
            }
        }
        object => vec![object],
    });
    let read = |mut object: Value| {
        let meta = object.get_mut("metadata")?.as_object_mut()?;
        meta.entry("namespace").or_insert_with(|| namespace.into());
        let object = ClusterObject::read(object).ok()?;
        let is_read = matches!(
            object,
            ClusterObject::Service(_)
                | ClusterObject::EndpointSlice(_)
                | ClusterObject::Pod(_)
                | ClusterObject::Node(_)
                | ClusterObject::Namespace(_)
                | ClusterObject::Secret(_)
        );
        is_read.then_some(object)
    };
    items.filter_map(read).collect()
}
