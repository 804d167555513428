//! The status of a route, with one entry per parent reference that is ours.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::conditions::{ConditionFault, StatusConditions};
use super::parents::{Attachment, AttachmentDenial, sort_key};
use super::tracked::TrackedSnapshot;
use crate::config::Meta;

/// Faults of the rules of a route; they may differ for sidecars and gateways.
pub(super) struct RouteFaults<'a> {
    pub(super) mesh: Option<&'a ConditionFault>,
    pub(super) gateway: Option<&'a ConditionFault>,
}

/// The status of a route. A reference to several listeners has one entry: attaching to one listener is enough.
pub(super) fn status(
    snapshot: &TrackedSnapshot<'_>,
    meta: &Meta,
    attachments: &[Attachment<'_>],
    faults: &RouteFaults<'_>,
) -> Value {
    let mut by_reference: BTreeMap<usize, Vec<&Attachment<'_>>> = BTreeMap::new();
    for attachment in attachments {
        by_reference.entry(attachment.index).or_default().push(attachment);
    }
    let mut parents: Vec<(String, Value)> = by_reference
        .values()
        .filter_map(|same| {
            let first = same.first()?;
            let key = sort_key(first.reference, &meta.namespace);
            Some((key, parent(snapshot, meta, first, same, faults)))
        })
        .collect();
    parents.sort_by(|(a, _), (b, _)| b.cmp(a));
    json!({"parents": parents.into_iter().map(|(_, parent)| parent).collect::<Vec<Value>>()})
}

fn parent(
    snapshot: &TrackedSnapshot<'_>,
    meta: &Meta,
    first: &Attachment<'_>,
    same: &[&Attachment<'_>],
    faults: &RouteFaults<'_>,
) -> Value {
    let bound = same.iter().filter(|a| a.denied.is_none()).count();
    let message = match bound {
        0 | 1 => "Route was valid".to_owned(),
        many => format!("Route was valid, bound to {many} parents"),
    };
    let mut conditions = StatusConditions::default();
    conditions.hold("Accepted", "Accepted", message);
    conditions.hold("ResolvedRefs", "ResolvedRefs", "All references resolved");
    let fault = if first.is_mesh() { faults.mesh } else { faults.gateway };
    conditions.fail_if("ResolvedRefs", fault.cloned());
    if bound == 0 {
        conditions.fail_if("Accepted", nearest_miss(same));
    }
    json!({
        "parentRef": first.reference,
        "controllerName": &*snapshot.settings().knobs.gateway_controller,
        "conditions": conditions.json(meta.generation),
    })
}

/// The denial that is nearest to success, with the messages of all denials of its kind.
fn nearest_miss(same: &[&Attachment<'_>]) -> Option<ConditionFault> {
    let denials = || same.iter().filter_map(|a| a.denied.as_ref());
    let nearest: AttachmentDenial = denials().map(|(denial, _)| *denial).min()?;
    let words: Vec<&str> = denials().filter(|(d, _)| *d == nearest).map(|(_, words)| words.as_str()).collect();
    Some(ConditionFault::new(nearest.reason(), words.join("; ")))
}
