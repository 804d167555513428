//! A plan over files: the configuration now, the change, and one proxy.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use api::{TypeUrl, Version};
use model::config::check::checked;
use model::config::{Key, Object};
use serde_json::{Value, json};

use super::{GroupEffect, PlanOptions, effect};
use crate::objects::texts;
use crate::translate::offline::OfflineMesh;

pub(super) async fn plan(options: &PlanOptions, envoy: Option<&Path>) -> Result<(Value, Vec<GroupEffect>)> {
    let before = OfflineMesh::read(&options.config, &options.namespace, None)?;
    before.mistakes().iter().for_each(|mistake| eprintln!("{mistake}"));
    let mut changes: BTreeMap<Key, Option<Object>> = BTreeMap::new();
    for (name, text) in texts(&options.files)? {
        let objects = checked(&text, &name, &options.namespace).objects;
        changes.extend(objects.into_iter().map(|object| (object.key(), (!options.delete).then_some(object))));
    }
    let objects: Vec<Value> = changes.iter().map(|(key, object)| shown(&before, key, object.as_ref())).collect();
    let after = OfflineMesh::of(before.world().with(changes));
    let resources = compared(&before, &after, options)?;
    let proxy = options.node.node.split('~').nth(2).unwrap_or_default();
    let touched = usize::from(!resources.is_empty());
    let groups = if resources.is_empty() { json!([]) } else { json!([{"proxies": [proxy], "resources": resources}]) };
    let known: Vec<String> = before.mistakes();
    let problems: Vec<String> = after.mistakes().into_iter().filter(|mistake| !known.contains(mistake)).collect();
    let report = json!({"objects": objects, "problems": problems, "proxies": 1, "touched": touched, "groups": groups});
    let effects = match touched {
        0 => Vec::new(),
        _ => vec![effect(proxy, &before.dump(&options.node)?, &after.dump(&options.node)?, envoy).await?],
    };
    Ok((report, effects))
}

fn shown(before: &OfflineMesh, key: &Key, object: Option<&Object>) -> Value {
    let change = match (before.world().objects.get(key), object) {
        (None, Some(_)) => "added",
        (Some(_), None) => "deleted",
        (Some(known), Some(planned)) if !known.means_the_same_as(planned) => "changed",
        _ => "same",
    };
    json!({"kind": key.kind.as_str(), "namespace": &*key.namespace, "name": &*key.name, "change": change})
}

/// The resources that differ.
fn compared(before: &OfflineMesh, after: &OfflineMesh, options: &PlanOptions) -> Result<Vec<Value>> {
    let versions = |mesh: &OfflineMesh| -> Result<BTreeMap<(TypeUrl, String), Version>> {
        let resources = mesh.resources(&options.node)?;
        Ok(resources.into_iter().map(|(kind, of)| ((kind, of.name.to_string()), of.version)).collect())
    };
    let (before, after) = (versions(before)?, versions(after)?);
    let mut found = Vec::new();
    let mut add = |(kind, name): &(TypeUrl, String), change: &str| {
        found.push(json!({"type": kind.short(), "name": name, "change": change}));
    };
    for (key, version) in &after {
        match before.get(key) {
            None => add(key, "added"),
            Some(known) if known != version => add(key, "changed"),
            Some(_) => {}
        }
    }
    before.keys().filter(|key| !after.contains_key(*key)).for_each(|key| add(key, "removed"));
    Ok(found)
}
