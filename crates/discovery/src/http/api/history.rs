//! The journal: changes of the last time, objects as they were, and what differs between two moments.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::config::print::to_json;
use model::config::{Key, Object, timestamp};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::{ApiQuery, ApiResult, PageResponse, Pages, bad_request, json_of, time_text};
use crate::serve::journal::{JournalEntry, JournalView, ObjectChange};

/// Changes in one answer unless fewer are asked for.
const MOST: usize = 1000;

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct HistoryList {
    snapshot: u64,
    /// Earlier versions of objects are known from this snapshot on.
    complete_since: u64,
    /// Newest first.
    entries: Vec<HistoryEntry>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct HistoryEntry {
    snapshot: u64,
    /// The last snapshot of merged changes of endpoints.
    last: u64,
    at: String,
    updated: String,
    sources: Vec<String>,
    synced: Vec<String>,
    objects: Vec<ChangedObject>,
    changed_objects: usize,
    services: usize,
    endpoints: usize,
    steps: usize,
    names: Vec<String>,
    settings: bool,
    problems: usize,
    /// Proxies that were sent the change and acknowledged it.
    acknowledged: usize,
    /// Milliseconds until the last of them had it.
    converged_millis: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    proxies: Vec<ProxyAcknowledgement>,
}

#[derive(Serialize, JsonSchema)]
struct ChangedObject {
    kind: &'static str,
    namespace: String,
    name: String,
    /// added, changed or deleted
    change: &'static str,
    source: Option<String>,
    file: Option<String>,
    line: Option<u32>,
}

#[derive(Serialize, JsonSchema)]
struct ProxyAcknowledgement {
    proxy: String,
    millis: u32,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct PastObjects {
    snapshot: u64,
    objects: Vec<Value>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct HistoryDiff {
    from: u64,
    to: u64,
    objects: Vec<ObjectDifference>,
}

#[derive(Serialize, JsonSchema)]
struct ObjectDifference {
    kind: &'static str,
    namespace: String,
    name: String,
    before: Option<Value>,
    after: Option<Value>,
}

fn changed(change: &ObjectChange) -> ChangedObject {
    let location = change.location.as_ref();
    ChangedObject {
        kind: change.key.kind.as_str(),
        namespace: change.key.namespace.to_string(),
        name: change.key.name.to_string(),
        change: change.verb(),
        source: change.store.as_ref().map(ToString::to_string),
        file: location.map(|location| location.file.to_string()),
        line: location.map(|location| location.line).filter(|line| *line > 0),
    }
}

/// An entry as it is shown.
pub(super) fn entry(entry: &JournalEntry, with_proxies: bool) -> HistoryEntry {
    let texts = |list: &[model::names::Str]| list.iter().map(ToString::to_string).collect();
    let acknowledged = &entry.acknowledged;
    let proxies = acknowledged.iter().filter(|_| with_proxies);
    HistoryEntry {
        snapshot: entry.number,
        last: entry.last,
        at: time_text(entry.at),
        updated: time_text(entry.updated),
        sources: texts(&entry.sources),
        synced: texts(&entry.synced),
        objects: entry.objects.iter().map(changed).collect(),
        changed_objects: entry.changed_objects,
        services: entry.services,
        endpoints: entry.endpoints,
        steps: entry.steps,
        names: texts(&entry.names),
        settings: entry.has_settings,
        problems: entry.problems,
        acknowledged: acknowledged.len(),
        converged_millis: acknowledged.iter().map(|by| by.millis).max(),
        proxies: proxies.map(|by| ProxyAcknowledgement { proxy: by.client.to_string(), millis: by.millis }).collect(),
    }
}

/// Whether a key is `KIND/NAMESPACE/NAME`, in any case of the kind.
fn is_object(query: &ApiQuery, key: &Key) -> bool {
    query.get("object").is_none_or(|wanted| {
        let mut parts = wanted.splitn(3, '/');
        let [kind, namespace, name] = [(); 3].map(|()| parts.next().unwrap_or_default());
        kind.eq_ignore_ascii_case(key.kind.as_str()) && namespace == &*key.namespace && name == &*key.name
    })
}

pub(super) fn list(pages: &Pages, query: &ApiQuery) -> ApiResult {
    let view = pages.pilot().world().journal().since(0);
    let limit = query.number("limit", 100)?.min(MOST);
    let is_wanted = |entry: &&std::sync::Arc<JournalEntry>| {
        let of_object = !query.has("object") || entry.objects.iter().any(|change| is_object(query, &change.key));
        let of_proxy = |proxy| entry.acknowledged.iter().any(|by| &*by.client == proxy);
        of_object && query.get("proxy").is_none_or(of_proxy)
    };
    let entries = view.entries.iter().rev().filter(is_wanted).take(limit);
    json_of(&HistoryList {
        snapshot: pages.pilot().world().now().number,
        complete_since: view.complete_since,
        entries: entries.map(|of| entry(of, query.has("proxies"))).collect(),
    })
}

/// The moment that a parameter names: a time or the number of a snapshot.
fn moment(view: &JournalView, newest: u64, text: &str) -> Result<u64, PageResponse> {
    if let Ok(number) = text.parse::<u64>() {
        return Ok(number.min(newest));
    }
    let bad = || bad_request(&format!("could not read {text:?}: not a time in RFC 3339 and not a snapshot's number"));
    let (seconds, nanos) = timestamp::parse(text).ok_or_else(bad)?;
    let since = Duration::new(u64::try_from(seconds).map_err(|_| bad())?, u32::try_from(nanos).map_err(|_| bad())?);
    let time: SystemTime = UNIX_EPOCH.checked_add(since).ok_or_else(bad)?;
    Ok(view.number_at(time).unwrap_or(newest))
}

/// Objects that were different in a snapshot; an error if the journal does not reach back to it.
fn earlier(view: &JournalView, number: u64) -> Result<BTreeMap<Key, Option<Object>>, PageResponse> {
    view.earlier(number).ok_or_else(|| {
        let since = view.entries.iter().find(|entry| entry.number >= view.complete_since);
        let at = since.map_or_else(String::new, |entry| format!(" of {}", time_text(entry.at)));
        bad_request(&format!(
            "could not go back to snapshot {number}: earlier versions are known from snapshot {}{at} on",
            view.complete_since
        ))
    })
}

pub(super) fn objects(pages: &Pages, query: &ApiQuery) -> ApiResult {
    // The journal is read last: it then lacks no change of the snapshot.
    let published = pages.pilot().world().now();
    let view = pages.pilot().world().journal().since(0);
    let number = moment(&view, published.number, query.get("at").unwrap_or_default())?;
    let mut past = earlier(&view, number)?;
    let current = published.snapshot.objects.iter().filter(|(key, _)| is_object(query, key));
    let mut found: BTreeMap<Key, Object> = BTreeMap::new();
    for (key, object) in current {
        match past.remove(key) {
            Some(None) => {}
            Some(Some(earlier)) => drop(found.insert(key.clone(), earlier)),
            None => drop(found.insert(key.clone(), object.clone())),
        }
    }
    let deleted = past.into_iter().filter(|(key, _)| is_object(query, key));
    found.extend(deleted.filter_map(|(key, object)| Some((key, object?))));
    json_of(&PastObjects { snapshot: number, objects: found.values().map(to_json).collect() })
}

pub(super) fn diff(pages: &Pages, query: &ApiQuery) -> ApiResult {
    let published = pages.pilot().world().now();
    let view = pages.pilot().world().journal().since(0);
    let Some(from) = query.get("from") else { return Err(bad_request("could not compare: from is needed")) };
    let from = moment(&view, published.number, from)?;
    let to = query.get("to").map_or(Ok(published.number), |to| moment(&view, published.number, to))?;
    let (mut before, after) = (earlier(&view, from)?, earlier(&view, to)?);
    // What differs from now in `to` but not in `from` is equal to now in `from`.
    for key in after.keys() {
        let now = || published.snapshot.objects.get(key).cloned();
        before.entry(key.clone()).or_insert_with(now);
    }
    let mut found = Vec::new();
    for (key, before) in before.into_iter().filter(|(key, _)| is_object(query, key)) {
        let after = match after.get(&key) {
            Some(known) => known.clone(),
            None => published.snapshot.objects.get(&key).cloned(),
        };
        let is_same = match (&before, &after) {
            (Some(before), Some(after)) => before.means_the_same_as(after),
            (None, None) => true,
            _ => false,
        };
        if !is_same {
            found.push(ObjectDifference {
                kind: key.kind.as_str(),
                namespace: key.namespace.to_string(),
                name: key.name.to_string(),
                before: before.as_ref().map(to_json),
                after: after.as_ref().map(to_json),
            });
        }
    }
    json_of(&HistoryDiff { from, to, objects: found })
}
