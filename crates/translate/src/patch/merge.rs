//! Messages merged as upstream merges them: scalars are overwritten, messages merged field by field, lists
//! appended to or replaced, entries of maps and durations replaced whole. What is in an `Any` is merged only
//! where a patch is meant for just that.

use api::Any;
use model::config::encode::encode;
use model::config::patches::Patch;
use prost::{Message, Name};
use prost_reflect::{DynamicMessage, MessageDescriptor, ReflectMessage, Value};

use super::list_merge;

/// What becomes of a list that both sides have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListMerge {
    Append,
    Replace,
}

/// Merges values into a message one after the other. The message is taken apart once for all of them, and put
/// together again when it is looked at or dropped.
pub(super) struct MessageMerge<'a, M: Message + Name + Default> {
    message: &'a mut M,
    open: Option<DynamicMessage>,
}

impl<'a, M: Message + Name + Default> MessageMerge<'a, M> {
    pub(super) fn new(message: &'a mut M) -> MessageMerge<'a, M> {
        MessageMerge { message, open: None }
    }

    /// Merges a patch's value, if merging is what it asks for.
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

    /// The message as it is now.
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

/// Both contents merged; `None` if they are of different types or of one that nobody knows.
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

/// Renames a filter if the patch has another name, and merges its settings if both have any.
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

/// Seconds of one and nanoseconds of the other would make a third.
fn is_duration(message: &DynamicMessage) -> bool {
    message.descriptor().full_name() == "google.protobuf.Duration"
}
