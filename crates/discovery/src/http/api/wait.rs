//! `POST /api/v1/wait`: answers when every proxy that the objects concern has them, when one rejects them, or after a
//! while, so that the caller can show the state and ask again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use api::TypeUrl;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use model::config::{Key, Object};
use model::problem::{Severity, Subject};
use schemars::JsonSchema;
use serde::Serialize;

use super::super::Layout;
use super::plan::{ChangeText, objects_of, text_of};
use super::{ApiQuery, PageResponse, Pages, QueryResult, bad_request, json_of, proxies};
use crate::serve::clients::Connection;
use crate::serve::pins::{Pin, Pins};
use crate::serve::planned::{References, changed};
use crate::serve::snapshot_writer::PublishedSnapshot;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(15);
/// A proxy counts when nothing was under way for this long: after new listeners an Envoy asks for their routes.
const SETTLED: Duration = Duration::from_millis(40);
/// An Envoy that connects asks for listeners within this time.
const ARRIVAL: Duration = Duration::from_secs(2);
/// Proxies that are late for this long are checked for whether the objects concern them.
const LATE: Duration = Duration::from_millis(400);
/// Proxies that are checked.
const MOST_CHECKED: usize = 64;
/// Names in one answer.
const MOST_NAMES: usize = 20;
/// Longest wait of one request.
const LONGEST: u64 = 20;

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct WaitReport {
    state: WaitState,
    /// The snapshot with the objects.
    snapshot: Option<u64>,
    proxies: usize,
    /// Proxies that have them.
    synced: usize,
    /// What is waited for, or what was rejected.
    reasons: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum WaitState {
    Done,
    Waiting,
    Rejected,
}

/// One request.
struct Wait {
    /// The objects; `None` for those that must be gone.
    wanted: BTreeMap<Key, Option<Object>>,
    /// The snapshot that has them, once there is one.
    number: Option<u64>,
    at: Option<SystemTime>,
    late_since: Option<Instant>,
    /// Whether the objects concern a late proxy, by number of its stream.
    concerned: HashMap<u64, bool>,
}

pub(super) async fn page(State(pages): State<Pages>, query: QueryResult, body: Body) -> Response {
    let Ok(Query(query)) = query else { return bad_request("could not parse the query").into_response() };
    let query = ApiQuery { path: Vec::new(), query };
    // Kept until the response is made: the objects are as large as the text.
    let ChangeText { text, memory: _memory } = match text_of(&pages, body).await {
        Ok(text) => text,
        Err(error) => return error.into_response(),
    };
    let seconds = match query.number("timeout", 10) {
        Ok(seconds) => u64::try_from(seconds).unwrap_or(LONGEST).min(LONGEST),
        Err(error) => return error.into_response(),
    };
    let parsed = tokio::task::spawn_blocking(move || {
        let is_deletion = query.has("delete");
        let objects = objects_of(&text, &query)?;
        Ok(objects.into_iter().map(|object| (object.key(), (!is_deletion).then_some(object))).collect())
    });
    let wanted: Result<BTreeMap<Key, Option<Object>>, PageResponse> = match parsed.await {
        Ok(wanted) => wanted,
        Err(_) => return PageResponse::failed("could not read the objects").into_response(),
    };
    let wanted = match wanted {
        Ok(wanted) => wanted,
        Err(error) => return error.into_response(),
    };
    let wait = Wait { wanted, number: None, at: None, late_since: None, concerned: HashMap::new() };
    let report = wait.run(&pages, Duration::from_secs(seconds)).await;
    pages.make(Layout::Compact, move |_| json_of(&report).map_or_else(|error| error, PageResponse::json)).await
}

impl Wait {
    async fn run(mut self, pages: &Pages, limit: Duration) -> WaitReport {
        let end = Instant::now() + limit;
        loop {
            let (of_pages, mut wait) = (pages.clone(), self);
            let looked = tokio::task::spawn_blocking(move || {
                let report = wait.look(&of_pages);
                (report, wait)
            });
            let Ok((report, wait)) = looked.await else {
                return WaitReport::new(WaitState::Waiting, vec!["the server is stopping".to_owned()]);
            };
            if report.state != WaitState::Waiting || Instant::now() >= end || pages.is_stopping() {
                return report;
            }
            self = wait;
            tokio::time::sleep(INTERVAL).await;
        }
    }

    fn look(&mut self, pages: &Pages) -> WaitReport {
        let published = pages.pilot().world().now();
        let missing = self.missing(&published);
        if !missing.is_empty() {
            // An object may be replaced meanwhile.
            (self.number, self.late_since) = (None, None);
            let rejected = self.rejected_by_server(&published);
            return match rejected.is_empty() {
                true => WaitReport::new(WaitState::Waiting, missing),
                false => WaitReport::new(WaitState::Rejected, rejected),
            };
        }
        let number = *self.number.get_or_insert_with(|| changed_in(pages, &self.wanted, published.number));
        self.at.get_or_insert(published.at);
        let clients = proxies::sorted(pages);
        let mut report = WaitReport::new(WaitState::Waiting, Vec::new());
        (report.snapshot, report.proxies) = (Some(number), clients.len());
        let rejections = self.rejections(pages, &published, number, &clients);
        if !rejections.is_empty() {
            return WaitReport { state: WaitState::Rejected, reasons: rejections, ..report };
        }
        let late: Vec<&Arc<Connection>> = clients.iter().filter(|client| !has(client, number)).collect();
        let late = self.concerned(pages, &published, number, late);
        report.synced = clients.len() - late.len();
        report.state = if late.is_empty() { WaitState::Done } else { WaitState::Waiting };
        report.reasons = late.iter().take(MOST_NAMES).map(|client| under_way(client)).collect();
        report
    }

    /// Objects that are not in the snapshot as wanted.
    fn missing(&self, published: &PublishedSnapshot) -> Vec<String> {
        let objects = &published.snapshot.objects;
        let reason = |(key, wanted): (&Key, &Option<Object>)| match (wanted, objects.get(key)) {
            (None, Some(_)) => Some(format!("{key} is still there")),
            (Some(_), None) => Some(format!("{key} is not there yet")),
            (Some(wanted), Some(known)) if !is_written_as(known, wanted) => Some(format!("{key} is still different")),
            _ => None,
        };
        self.wanted.iter().filter_map(reason).take(MOST_NAMES).collect()
    }

    /// Errors that a source reports about the objects: they will not appear.
    fn rejected_by_server(&self, published: &PublishedSnapshot) -> Vec<String> {
        let problems = published.snapshot.problems.values().flatten();
        let errors = problems.filter(|problem| problem.severity == Severity::Error);
        let of_wanted =
            errors.filter(|problem| matches!(&problem.about, Subject::Object(key) if self.wanted.contains_key(key)));
        of_wanted.map(ToString::to_string).take(MOST_NAMES).collect()
    }

    /// Rejections by proxies since the objects are there.
    fn rejections(
        &self,
        pages: &Pages,
        published: &PublishedSnapshot,
        number: u64,
        clients: &[Arc<Connection>],
    ) -> Vec<String> {
        let register = pages.pilot().register();
        let pinned = register.objects(&published.snapshot).into_iter();
        let pinned = pinned.filter(|(key, _, _)| self.wanted.contains_key(key));
        let mut found: Vec<String> = pinned
            .map(|(key, _, affected)| {
                let clients: Vec<&str> = affected.clients.iter().take(MOST_NAMES).map(|client| &**client).collect();
                format!("{} rejected {key}: {}", clients.join(", "), affected.message)
            })
            .collect();
        let since = |at: SystemTime| self.at.is_some_and(|published| at >= published);
        let withheld = register.resources().into_iter().filter(|(_, affected)| since(affected.since));
        found.extend(withheld.map(|(name, affected)| format!("a proxy rejected {name}: {}", affected.message)));
        for client in clients {
            let watched = client.watched();
            let refused = watched.iter().filter_map(|(kind, watched)| Some((kind, watched.refused.as_ref()?)));
            for (kind, refused) in refused.filter(|(_, refused)| refused.number >= number) {
                found.push(format!("{} rejected {}: {}", client.proxy.id, kind.short(), refused.message));
            }
        }
        found.truncate(MOST_NAMES);
        found
    }

    /// Late proxies that the objects concern. Proxies that have been late for a while are served both versions for
    /// comparison: one that does not answer, but would get the same anyway, is not waited for.
    fn concerned<'a>(
        &mut self,
        pages: &Pages,
        published: &Arc<PublishedSnapshot>,
        number: u64,
        late: Vec<&'a Arc<Connection>>,
    ) -> Vec<&'a Arc<Connection>> {
        if late.is_empty() {
            return late;
        }
        let since = *self.late_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= LATE && late.iter().any(|client| !self.concerned.contains_key(&client.number)) {
            let former = pages.pilot().world().journal().since(0).earlier(number.saturating_sub(1));
            for client in late.iter().take(MOST_CHECKED) {
                let is_concerned =
                    former.as_ref().is_none_or(|former| self.is_concerned(pages, published, former, client));
                self.concerned.entry(client.number).or_insert(is_concerned);
            }
        }
        late.into_iter().filter(|client| self.concerned.get(&client.number) != Some(&false)).collect()
    }

    fn is_concerned(
        &self,
        pages: &Pages,
        published: &Arc<PublishedSnapshot>,
        former: &BTreeMap<Key, Option<Object>>,
        client: &Connection,
    ) -> bool {
        let pin = |key: &Key| former.get(key).map(|good| (key.clone(), Pin { bad: None, good: good.clone() }));
        let pins: Pins = self.wanted.keys().filter_map(pin).collect();
        if pins.len() < self.wanted.len() {
            return true;
        }
        let views = pages.pilot().views();
        let (before, after) =
            (views.trial(published, &client.proxy, &pins), views.trial(published, &client.proxy, &Pins::new()));
        !changed(&before, &after, &client.watched(), &mut References::default()).is_empty()
    }
}

impl WaitReport {
    fn new(state: WaitState, reasons: Vec<String>) -> WaitReport {
        WaitReport { state, snapshot: None, proxies: 0, synced: 0, reasons }
    }
}

/// Whether the object that is served was written as wanted; its store may add age and version.
fn is_written_as(known: &Object, wanted: &Object) -> bool {
    known.spec == wanted.spec && known.meta.labels == wanted.meta.labels
}

/// The snapshot in which the last of the objects became as it is; the newest if that is unknown.
fn changed_in(pages: &Pages, wanted: &BTreeMap<Key, Option<Object>>, newest: u64) -> u64 {
    let view = pages.pilot().world().journal().since(0);
    let of_key = |key: &Key| {
        let is_of_key = |entry: &&Arc<crate::serve::journal::JournalEntry>| {
            entry.number <= newest && entry.objects.iter().any(|change| change.key == *key)
        };
        view.entries.iter().rev().find(is_of_key).map(|entry| entry.number)
    };
    wanted.keys().map(|key| of_key(key).unwrap_or(newest)).max().unwrap_or(newest)
}

/// Whether a proxy has answered everything of a snapshot.
fn has(client: &Connection, number: u64) -> bool {
    let holding = client.holding();
    let is_settled = holding.since.is_some_and(|since| since.elapsed() >= SETTLED);
    let is_arriving = client.since.elapsed().is_ok_and(|since| since < ARRIVAL);
    let has_asked = !is_arriving || client.watched().contains_key(&TypeUrl::LISTENER);
    is_settled && holding.number >= number && has_asked
}

/// What is under way to a proxy.
fn under_way(client: &Connection) -> String {
    let watched = client.watched();
    let open = watched.iter().filter(|(_, watched)| watched.nonces().0 != watched.nonces().1);
    let open: Vec<&str> = open.map(|(kind, _)| kind.short()).collect();
    match open.is_empty() {
        true => format!("{} is being sent it", client.proxy.id),
        false => format!("{} has not acknowledged {}", client.proxy.id, open.join(", ")),
    }
}
