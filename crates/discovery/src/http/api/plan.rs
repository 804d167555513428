//! `POST /api/v1/plan`: what a change would do. The change is applied to a copy of the newest snapshot, and what each
//! connected proxy is served is compared. Nothing is published. One plan is made at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http_body::Body as _;
use model::config::check::checked;
use model::config::{Key, Meta, Object};
use model::problem::{Problem, Severity, Subject};
use model::snapshot::Snapshot;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::super::Layout;
use super::{ApiQuery, ApiResult, PageResponse, Pages, QueryResult, bad_request, json_of, not_found, proxies};
use crate::http::debug::dump::{DumpedView, whole_view};
use crate::serve::clients::Connection;
use crate::serve::pins::Pins;
use crate::serve::planned::{ChangedResource, References, changed};
use crate::serve::rendered::RenderedView;
use crate::serve::snapshot_writer::PublishedSnapshot;
use crate::serve::views::Views;

/// Bytes of a change.
pub(super) const MOST_BYTES: usize = 32 << 20;
/// Name of the change in messages that have no other file.
const NAME: &str = "change";
/// Problems in one answer.
const MOST_PROBLEMS: usize = 200;

/// Kilobytes of all large changes that are read, planned or waited for at one time, and of all small ones.
const LARGE_KILOBYTES: usize = 96 << 10;
const SMALL_KILOBYTES: usize = 32 << 10;
/// Bytes of a small change. It does not wait for clients that send large ones slowly.
const SMALL: usize = 1 << 20;
/// Time for a client to send a change.
const READ_TIME: Duration = Duration::from_secs(30);

/// Limits what requests with changes use together: memory, and one plan is made at a time.
pub(in crate::http) struct ChangeLimits {
    large: Arc<Semaphore>,
    small: Arc<Semaphore>,
    plans: Semaphore,
}

impl Default for ChangeLimits {
    fn default() -> ChangeLimits {
        let [large, small] = [LARGE_KILOBYTES, SMALL_KILOBYTES].map(|kilobytes| Arc::new(Semaphore::new(kilobytes)));
        ChangeLimits { large, small, plans: Semaphore::new(1) }
    }
}

/// The text of a request, and its part of the memory for changes.
pub(super) struct ChangeText {
    pub(super) text: String,
    pub(super) memory: OwnedSemaphorePermit,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct PlanReport {
    /// The snapshot that the change was applied to.
    snapshot: u64,
    objects: Vec<PlannedObject>,
    /// Problems that the change would add.
    problems: Vec<String>,
    proxies: usize,
    /// Proxies that would get different resources.
    touched: usize,
    /// Proxies with the same differences.
    groups: Vec<PlannedGroup>,
    /// For the proxy of the parameter `dump`: its configuration before and after.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<Value>,
}

#[derive(Serialize, JsonSchema)]
struct PlannedObject {
    kind: &'static str,
    namespace: String,
    name: String,
    /// added, changed, deleted or same
    change: &'static str,
    line: Option<u32>,
}

#[derive(Serialize, JsonSchema)]
struct PlannedGroup {
    proxies: Vec<String>,
    resources: Vec<PlannedResource>,
}

#[derive(Serialize, JsonSchema)]
struct PlannedResource {
    r#type: String,
    name: String,
    change: &'static str,
}

/// Reads the text of a request. Its size is reserved before it is read.
pub(super) async fn text_of(pages: &Pages, body: Body) -> Result<ChangeText, PageResponse> {
    let too_large = || {
        let reason = format!("could not read the change: it is larger than {MOST_BYTES} bytes, or was cut off");
        PageResponse::refused(StatusCode::PAYLOAD_TOO_LARGE, &reason)
    };
    let announced = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(MOST_BYTES);
    if announced > MOST_BYTES {
        return Err(too_large());
    }
    let kilobytes = u32::try_from(announced.div_ceil(1024)).unwrap_or(u32::MAX);
    let limits = &pages.0.changes;
    let memory = if announced <= SMALL { &limits.small } else { &limits.large }.clone();
    let memory = memory.try_acquire_many_owned(kilobytes).map_err(|_| {
        let reason = "could not read the change: other changes use all memory for them; try again later";
        PageResponse::refused(StatusCode::SERVICE_UNAVAILABLE, reason)
    })?;
    let read = tokio::time::timeout(READ_TIME, to_bytes(body, MOST_BYTES)).await;
    let bytes =
        read.map_err(|_| bad_request(&format!("could not read the change: it did not arrive within {READ_TIME:?}")))?;
    let bytes = bytes.map_err(|_| too_large())?;
    let text = String::from_utf8(bytes.into()).map_err(|_| bad_request("could not read the change: not UTF-8"))?;
    Ok(ChangeText { text, memory })
}

/// The objects of a text; an error names every mistake.
pub(super) fn objects_of(text: &str, query: &ApiQuery) -> Result<Vec<Object>, PageResponse> {
    let parsed = checked(text, query.get("file").unwrap_or(NAME), query.get("namespace").unwrap_or("default"));
    // Documents of other kinds are not planned.
    let is_ours = |problem: &&Problem| matches!(problem.about, Subject::Object(_) | Subject::File(_));
    let errors = parsed.problems.iter().filter(|problem| problem.severity == Severity::Error);
    let errors: Vec<&Problem> = errors.filter(is_ours).collect();
    if !errors.is_empty() {
        let texts: Vec<String> = errors.iter().take(MOST_PROBLEMS).map(ToString::to_string).collect();
        return Err(bad_request(&format!("the change has mistakes: {}", texts.join("; "))));
    }
    if parsed.objects.is_empty() {
        return Err(bad_request("the change has no objects of configuration"));
    }
    Ok(parsed.objects)
}

pub(super) async fn page(State(pages): State<Pages>, query: QueryResult, body: Body) -> Response {
    let Ok(axum::extract::Query(query)) = query else {
        return bad_request("could not parse the query").into_response();
    };
    let query = ApiQuery { path: Vec::new(), query };
    let ChangeText { text, memory: _memory } = match text_of(&pages, body).await {
        Ok(text) => text,
        Err(error) => return error.into_response(),
    };
    let Ok(_turn) = pages.0.changes.plans.acquire().await else {
        return PageResponse::failed("the server is stopping").into_response();
    };
    let make = move |pages: &Pages| plan(pages, &query, &text).map_or_else(|error| error, PageResponse::json);
    pages.make(Layout::Compact, make).await
}

fn plan(pages: &Pages, query: &ApiQuery, text: &str) -> ApiResult {
    let published = pages.pilot().world().now();
    let objects = objects_of(text, query)?;
    let is_deletion = query.has("delete");
    let world = &published.snapshot;
    let changes: BTreeMap<Key, Option<Object>> =
        objects.iter().map(|object| (object.key(), (!is_deletion).then(|| with_history(object, world)))).collect();
    let shown = objects.iter().map(|object| shown(object, world, changes.get(&object.key())));
    let shown = shown.collect();
    let next = Arc::new(published.next(world.with(changes), None));
    let compared = ServedComparison::new(pages, &published, &next);
    let (total, groups) = compared.groups(pages);
    let (before, after) = match query.get("dump") {
        None => (None, None),
        Some(proxy) => {
            let connection = pages.pilot().clients().find(proxy);
            let connection = connection.ok_or_else(|| not_found("this proxy is not connected to this instance"))?;
            let (before, after) = compared.dumps(&connection);
            (Some(before), Some(after))
        }
    };
    json_of(&PlanReport {
        snapshot: published.number,
        objects: shown,
        problems: new_problems(world, &next.snapshot),
        proxies: total,
        touched: groups.iter().map(|group| group.proxies.len()).sum(),
        groups,
        before,
        after,
    })
}

/// The object with what its store keeps when it changes: its age and version.
fn with_history(object: &Object, world: &Snapshot) -> Object {
    let Some(known) = world.objects.get(&object.key()) else { return object.clone() };
    let known = &known.meta;
    let meta = Meta {
        created: known.created,
        resource_version: known.resource_version.clone(),
        keeps_status: known.keeps_status,
        is_of_other_revision: known.is_of_other_revision,
        auto_addresses: known.auto_addresses.clone(),
        health: known.health,
        generation: known.generation,
        ..Meta::clone(&object.meta)
    };
    Object { meta: Arc::new(meta), spec: object.spec.clone() }
}

fn shown(object: &Object, world: &Snapshot, planned: Option<&Option<Object>>) -> PlannedObject {
    let key = object.key();
    let change = match (world.objects.get(&key), planned.and_then(Option::as_ref)) {
        (None, Some(_)) => "added",
        (Some(_), None) => "deleted",
        (Some(known), Some(planned)) if !known.means_the_same_as(planned) => "changed",
        _ => "same",
    };
    PlannedObject {
        kind: key.kind.as_str(),
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
        change,
        line: object.meta.location.as_ref().map(|location| location.line),
    }
}

fn new_problems(before: &Snapshot, after: &Snapshot) -> Vec<String> {
    let known: std::collections::HashSet<&Problem> = before.problems.values().flatten().collect();
    let new = after.problems.values().flatten().filter(|problem| !known.contains(problem));
    new.take(MOST_PROBLEMS).map(ToString::to_string).collect()
}

/// What clients are served in two snapshots.
struct ServedComparison<'a> {
    views: &'a Views,
    before: &'a Arc<PublishedSnapshot>,
    /// Views that no client is served.
    planned: Views,
    after: &'a Arc<PublishedSnapshot>,
}

impl ServedComparison<'_> {
    fn new<'a>(
        pages: &'a Pages,
        before: &'a Arc<PublishedSnapshot>,
        after: &'a Arc<PublishedSnapshot>,
    ) -> ServedComparison<'a> {
        // Problems of a plan are not published: the receiver is gone.
        let planned = Views::new(mpsc::channel(1).0);
        ServedComparison { views: pages.pilot().views(), before, planned, after }
    }

    fn views_of(&self, connection: &Connection) -> (Arc<RenderedView>, Arc<RenderedView>) {
        let (proxy, pins) = (&connection.proxy, Pins::new());
        let (_, before) = self.views.cut(self.before, proxy, &pins, None);
        let (_, after) = self.planned.cut(self.after, proxy, &pins, None);
        (before, after)
    }

    /// Number of all proxies, and those with differences, grouped by their differences.
    fn groups(&self, pages: &Pages) -> (usize, Vec<PlannedGroup>) {
        let mut references = References::default();
        let mut by_difference: BTreeMap<Vec<ChangedResource>, Vec<String>> = BTreeMap::new();
        let connections = proxies::sorted(pages);
        // Placements keep the views of a class alive, so that its other clients share them.
        let mut kept = Vec::new();
        let mut known: std::collections::HashMap<(usize, usize, bool), Vec<ChangedResource>> = Default::default();
        for connection in &connections {
            let (proxy, pins) = (&connection.proxy, Pins::new());
            let (of_before, before) = self.views.cut(self.before, proxy, &pins, None);
            let (of_after, after) = self.planned.cut(self.after, proxy, &pins, None);
            let watched = connection.watched();
            let has_names =
                watched.contains_key(&api::TypeUrl::SECRET) || watched.contains_key(&api::TypeUrl::EXTENSION);
            let pair = (Arc::as_ptr(&before) as usize, Arc::as_ptr(&after) as usize, has_names);
            let differences = match known.get(&pair).filter(|_| !has_names) {
                Some(known) => known.clone(),
                None => changed(&before, &after, &watched, &mut references),
            };
            known.insert(pair, differences.clone());
            kept.push((of_before, of_after, before, after));
            if !differences.is_empty() {
                by_difference.entry(differences).or_default().push(proxy.id.to_string());
            }
        }
        let group = |(resources, mut proxies): (Vec<ChangedResource>, Vec<String>)| {
            proxies.dedup();
            let resources = resources.into_iter().map(|resource| PlannedResource {
                r#type: resource.kind.short().to_owned(),
                change: resource.change.as_str(),
                name: resource.name,
            });
            PlannedGroup { proxies, resources: resources.collect() }
        };
        let mut groups: Vec<PlannedGroup> = by_difference.into_iter().map(group).collect();
        groups.sort_by(|one, other| (other.proxies.len(), &one.proxies).cmp(&(one.proxies.len(), &other.proxies)));
        (connections.len(), groups)
    }

    /// The whole configuration of a proxy before and after.
    fn dumps(&self, connection: &Connection) -> (Value, Value) {
        let (before, after) = self.views_of(connection);
        let (watched, mut references) = (connection.watched(), References::default());
        let mut dump = |view: Arc<RenderedView>| {
            let watched = references.subscriptions(&view, &watched);
            whole_view(&DumpedView { watched, cut: Some(view) }, true)
        };
        (dump(before), dump(after))
    }
}
