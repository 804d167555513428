//! Merges messages as upstream does: scalars are overwritten, messages merged by field, lists appended or replaced, map
//! entries and durations replaced. The content of an `Any` is merged only where a patch targets it.

use api::Any;
use model::config::encode::encode;
use model::config::patches::Patch;
use prost::{Message, Name};
use prost_reflect::{DynamicMessage, MessageDescriptor, ReflectMessage, Value};

use super::list_merge;

/// How lists are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListMerge {
    Append,
    Replace,
}

/// Merges several values into a message. The message is decoded into a dynamic message once, and encoded back when it
/// is accessed or dropped.
pub(super) struct MessageMerge<'a, M: Message + Name + Default> {
    message: &'a mut M,
    open: Option<DynamicMessage>,
}

impl<'a, M: Message + Name + Default> MessageMerge<'a, M> {
    pub(super) fn new(message: &'a mut M) -> MessageMerge<'a, M> {
        MessageMerge { message, open: None }
    }

    /// Merges a patch's value if it is a merge patch.
    pub(super) fn merge(&mut self, patch: &Patch) {
        let (Some(list_merge), Some(value)) = (list_merge(patch), patch.message()) else { return };
        if self.open.is_none() {
            let decode = |descriptor| DynamicMessage::decode(descriptor, &*self.message.encode_to_vec()).ok();
            self.open = described(&M::full_name()).and_then(decode);
        }
        if let Some(open) = &mut self.open {
            merge_fields(open, value, list_merge);
        }
    }

    /// The current message.
    pub(super) fn message(&mut self) -> &mut M {
        if let Some(open) = self.open.take()
            && let Ok(merged) = M::decode(&*open.encode_to_vec())
        {
            *self.message = merged;
        }
        self.message
    }
}

impl<M: Message + Name + Default> Drop for MessageMerge<'_, M> {
    fn drop(&mut self) {
        self.message();
    }
}

/// Merges the contents; `None` if their types differ or are unknown.
pub(super) fn merge_any(into: &Any, from: &Any) -> Option<Any> {
    let name = type_name(&into.type_url);
    if name != type_name(&from.type_url) {
        return None;
    }
    let descriptor = described(name)?;
    let mut merged = DynamicMessage::decode(descriptor.clone(), &*into.value).ok()?;
    merge_fields(&mut merged, &DynamicMessage::decode(descriptor, &*from.value).ok()?, ListMerge::Append);
    Some(Any { type_url: format!("type.googleapis.com/{name}"), value: encode(&merged) })
}

/// Merges the filter's config with the patch's, and renames the filter if the patch has a name.
pub(super) fn merge_filter(filter: (&mut String, &mut Any), patch: (&str, Option<&Any>)) {
    let (name, settings) = filter;
    if let Some(merged) = patch.1.and_then(|new| merge_any(settings, new)) {
        *settings = merged;
    }
    if !patch.0.is_empty() {
        patch.0.clone_into(name);
    }
}

fn described(name: &str) -> Option<MessageDescriptor> {
    api::reflect::envoy().get_message_by_name(name)
}

fn type_name(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or(url)
}

fn merge_fields(into: &mut DynamicMessage, from: &DynamicMessage, list_merge: ListMerge) {
    for (field, value) in from.fields() {
        if !into.has_field(&field) {
            into.set_field(&field, value.clone());
            continue;
        }
        match (into.get_field_mut(&field), value) {
            (Value::List(old), Value::List(new)) => {
                if list_merge == ListMerge::Replace {
                    old.clear();
                }
                old.extend(new.iter().cloned());
            }
            (Value::Map(old), Value::Map(new)) => {
                old.extend(new.iter().map(|(key, value)| (key.clone(), value.clone())));
            }
            (Value::Message(old), Value::Message(new)) if !is_duration(new) => merge_fields(old, new, list_merge),
            (old, new) => *old = new.clone(),
        }
    }
}

/// Durations are not merged: seconds of one and nanoseconds of the other would be a third duration.
fn is_duration(message: &DynamicMessage) -> bool {
    message.descriptor().full_name() == "google.protobuf.Duration"
}
