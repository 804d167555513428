//! Fetches JSON Web Key Sets for policies that have a `jwksUri` or an issuer instead of inline keys.
//! After a failed fetch the last keys stay in use, and the fetch is retried with backoff.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::backoff::Backoff;
use crate::http::{AddressPolicy, HttpClient, HttpError, HttpOptions, RequestLimits, TrustRoots};
use crate::source::{ChangeSender, Source, SourceError};
use http::{HeaderMap, Uri};
use model::change::{Change, SourceId};
use model::config::Key;
use model::fetch_requests::{FetchRequests, KeyRequest, KeySource};
use model::names::Str;
use model::problem::{Problem, ProblemCode};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// The largest response. A key set is a few kilobytes.
const MAX_BYTES: usize = 1 << 20;
/// The longest timeout that a policy can set.
const MAX_TIMEOUT: Duration = Duration::from_secs(30);
/// Serving starts after this long without the missing keys; their tokens are rejected until they arrive.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(10);
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(5 * 60);
/// Keys that could not be refreshed for this long are dropped, as in upstream.
const MAX_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
const MAX_CONCURRENT_FETCHES: usize = 8;

/// The source of key sets.
pub struct Jwks {
    requests: watch::Receiver<Option<FetchRequests>>,
    refresh: Duration,
    fetcher: Fetcher,
    key_sets: BTreeMap<KeySource, KeySetState>,
    problems: Vec<Problem>,
    is_synced: bool,
}

/// One requested key set.
struct KeySetState {
    request: KeyRequest,
    keys: Option<Str>,
    fetched: Option<Instant>,
    failure: Option<String>,
    backoff: Backoff,
    due: Instant,
}

type FetchTasks = JoinSet<(KeySource, Result<Str, KeyFetchError>)>;

/// Why a key set could not be fetched.
#[derive(Debug, thiserror::Error)]
enum KeyFetchError {
    #[error("no response within {0:?}")]
    Timeout(Duration),
    #[error("{0}")]
    Http(String),
    #[error("status {status}: {body}")]
    Status { status: u16, body: String },
    #[error("more than {MAX_REDIRECTS} redirects")]
    TooManyRedirects,
    #[error("the server sent a redirect without a location")]
    NoLocation,
    #[error("the server sent a redirect to {0}, which is not a URL")]
    BadLocation(String),
    #[error("the server sent a redirect from https to http")]
    InsecureRedirect,
    #[error("the response is not UTF-8")]
    NotText,
    #[error("the response is not a JSON Web Key Set")]
    NotAKeySet,
    #[error("the response has no keys")]
    NoKeys,
    #[error("the OpenID configuration is not JSON")]
    NotJson,
    #[error("the OpenID configuration has no jwks_uri")]
    NoJwksUri,
}

impl Jwks {
    /// Fetches the requested key sets, and again after each `refresh`. Waits for the first value of `requests`, which
    /// must contain everything that the mesh needs at its start.
    pub fn new(requests: watch::Receiver<Option<FetchRequests>>, refresh: Duration, reach: AddressPolicy) -> Jwks {
        let fetcher = Fetcher { reach, client: Arc::default() };
        Jwks { requests, refresh, fetcher, key_sets: BTreeMap::new(), problems: Vec::new(), is_synced: false }
    }

    /// Adds new key sets and drops those that are no longer requested.
    fn update_requests(&mut self) -> Vec<Change> {
        let requests = self.requests.borrow_and_update().clone().unwrap_or_default();
        let (kept, dropped): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.key_sets).into_iter().partition(|(source, _)| requests.keys.contains_key(source));
        self.key_sets = kept;
        for (source, request) in requests.keys {
            self.key_sets.entry(source).or_insert_with(|| KeySetState::new(self.refresh)).request = request;
        }
        dropped.into_keys().map(|source| Change::KeySet(source, None)).collect()
    }

    /// Starts the fetches that are due.
    fn start_fetches(&mut self, running: &mut BTreeSet<KeySource>, tasks: &mut FetchTasks) {
        let now = Instant::now();
        for (source, key_set) in &self.key_sets {
            if running.len() >= MAX_CONCURRENT_FETCHES {
                return;
            }
            if key_set.due <= now && running.insert(source.clone()) {
                let (fetcher, source, limit) = (self.fetcher.clone(), source.clone(), key_set.request.timeout);
                tasks.spawn(async move {
                    let found = fetcher.keys(&source, limit.min(MAX_TIMEOUT)).await;
                    (source, found)
                });
            }
        }
    }

    /// Records the result of a fetch. Returns the change if there is one.
    fn record(&mut self, source: KeySource, result: Result<Str, KeyFetchError>) -> Option<Change> {
        let refresh = self.refresh;
        let key_set = self.key_sets.get_mut(&source)?;
        match result {
            Ok(keys) => key_set.succeed(keys, refresh),
            Err(error) => key_set.fail(&error),
        }
        .then(|| Change::KeySet(source, key_set.keys.clone()))
    }

    /// All problems, if they changed.
    fn problems(&mut self) -> Option<Change> {
        let found: Vec<Problem> = self.key_sets.iter().flat_map(|(source, key_set)| key_set.problems(source)).collect();
        if found == self.problems {
            return None;
        }
        self.problems.clone_from(&found);
        Some(Change::Problems(found))
    }

    /// `Synced`, once every key set was fetched or failed, or the startup timeout passed.
    fn synced(&mut self, started: Instant) -> Option<Change> {
        let is_tried = |key_set: &KeySetState| key_set.fetched.is_some() || key_set.failure.is_some();
        let is_over = self.key_sets.values().all(is_tried) || started.elapsed() >= STARTUP_TIMEOUT;
        let is_first = is_over && !self.is_synced;
        self.is_synced |= is_over;
        is_first.then_some(Change::Synced)
    }

    /// When the next fetch or the startup timeout is due.
    fn next_due(&self, running: &BTreeSet<KeySource>, started: Instant) -> Option<Instant> {
        let idle = self.key_sets.iter().filter(|(source, _)| !running.contains(*source));
        let has_room = running.len() < MAX_CONCURRENT_FETCHES;
        let due = if has_room { idle.map(|(_, key_set)| key_set.due).min() } else { None };
        let start = (!self.is_synced).then_some(started + STARTUP_TIMEOUT);
        due.into_iter().chain(start).min()
    }
}

impl Source for Jwks {
    fn id(&self) -> SourceId {
        SourceId("jwks".into())
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        self.requests.wait_for(Option::is_some).await.map_err(|_| SourceError::Closed)?;
        let (started, mut running, mut tasks) = (Instant::now(), BTreeSet::new(), FetchTasks::new());
        let mut changes = self.update_requests();
        loop {
            changes.extend(self.problems());
            changes.extend(self.synced(started));
            sender.send(std::mem::take(&mut changes)).await?;
            self.start_fetches(&mut running, &mut tasks);
            let due = self.next_due(&running, started);
            tokio::select! {
                finished = next(&mut tasks) => {
                    let (source, result) = finished.map_err(|e| SourceError::Failed(e.to_string()))?;
                    running.remove(&source);
                    sender.health().count_key_fetch(result.is_ok());
                    changes.extend(self.record(source, result));
                }
                changed = self.requests.changed() => {
                    changed.map_err(|_| SourceError::Closed)?;
                    changes = self.update_requests();
                }
                () = until(due) => {}
            }
        }
    }
}

async fn next(tasks: &mut FetchTasks) -> Result<(KeySource, Result<Str, KeyFetchError>), tokio::task::JoinError> {
    match tasks.join_next().await {
        Some(finished) => finished,
        None => pending().await,
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}

impl KeySetState {
    fn new(refresh: Duration) -> KeySetState {
        let (request, due) = (KeyRequest::default(), Instant::now());
        let backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT.min(refresh.max(FIRST_WAIT)));
        KeySetState { request, keys: None, fetched: None, failure: None, backoff, due }
    }

    /// Records fetched keys. Returns whether they changed.
    fn succeed(&mut self, keys: Str, refresh: Duration) -> bool {
        let now = Instant::now();
        (self.fetched, self.due, self.failure) = (Some(now), now + refresh, None);
        self.backoff.reset();
        let is_new = self.keys.as_deref().is_none_or(|known| key_list(known) != key_list(&keys));
        if is_new {
            self.keys = Some(keys);
        }
        is_new
    }

    /// Records a failure. Returns whether the keys were dropped because of their age.
    fn fail(&mut self, error: &KeyFetchError) -> bool {
        let now = Instant::now();
        self.failure = Some(error.to_string());
        self.due = now + self.backoff.next_wait();
        let is_stale = self.fetched.is_some_and(|fetched| now - fetched >= MAX_AGE);
        is_stale && self.keys.take().is_some()
    }

    /// The failure, as a problem of every object that requests these keys.
    fn problems(&self, source: &KeySource) -> Vec<Problem> {
        let Some(failure) = &self.failure else { return Vec::new() };
        let problem = |by: &Key| {
            let message = format!("could not fetch the keys of {source}: {failure}");
            match self.keys {
                Some(_) => Problem::warning(by.clone(), format!("{message}; the last keys stay in use"))
                    .coded(ProblemCode::KeySet),
                None => Problem::error(by.clone(), format!("{message}; its tokens are rejected until then"))
                    .coded(ProblemCode::KeySet),
            }
        };
        self.request.by.iter().map(problem).collect()
    }
}

/// The keys, sorted: their order in the response does not matter.
fn key_list(keys: &str) -> Option<Vec<String>> {
    let set: Value = serde_json::from_str(keys).ok()?;
    let mut list: Vec<String> = set.get("keys")?.as_array()?.iter().map(Value::to_string).collect();
    list.sort();
    Some(list)
}

/// Fetches key sets over HTTP. The client is created for the first fetch; if that fails, every fetch fails.
#[derive(Clone)]
struct Fetcher {
    reach: AddressPolicy,
    client: Arc<OnceLock<Result<HttpClient, HttpError>>>,
}

/// The most redirects followed. Each URL is checked like the first.
const MAX_REDIRECTS: usize = 4;

impl Fetcher {
    fn client(&self) -> Result<&HttpClient, KeyFetchError> {
        let options = |roots| HttpOptions { roots, address_policy: self.reach.clone(), ..HttpOptions::default() };
        // Without trusted CA certificates, plain HTTP still works.
        let made =
            || HttpClient::new(&options(TrustRoots::System)).or_else(|_| HttpClient::new(&options(TrustRoots::None)));
        self.client.get_or_init(made).as_ref().map_err(|error| KeyFetchError::Http(error.to_string()))
    }

    async fn keys(&self, source: &KeySource, limit: Duration) -> Result<Str, KeyFetchError> {
        match tokio::time::timeout(limit, self.fetch(source, limit)).await {
            Ok(found) => found,
            Err(_) => Err(KeyFetchError::Timeout(limit)),
        }
    }

    async fn fetch(&self, source: &KeySource, limit: Duration) -> Result<Str, KeyFetchError> {
        let url = match source {
            KeySource::Uri(uri) => uri.to_string(),
            KeySource::Issuer(issuer) => {
                let discovery = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
                jwks_uri(&self.get(&discovery, limit).await?)?
            }
        };
        let text = self.get(&url, limit).await?;
        match key_list(&text) {
            Some(keys) if !keys.is_empty() => Ok(text.into()),
            Some(_) => Err(KeyFetchError::NoKeys),
            None => Err(KeyFetchError::NotAKeySet),
        }
    }

    /// Gets a text, following redirects.
    async fn get(&self, url: &str, time: Duration) -> Result<String, KeyFetchError> {
        let client = self.client()?;
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let limits = RequestLimits { time, silence: time, bytes: MAX_BYTES };
            let reply = client.get(&url, &HeaderMap::new(), limits).await;
            let reply = reply.map_err(|error| KeyFetchError::Http(error.to_string()))?;
            if reply.status.is_redirection() {
                let location = reply.header("location").ok_or(KeyFetchError::NoLocation)?;
                url = redirected(&url, location)?;
            } else if reply.status.is_success() {
                return String::from_utf8(reply.body).map_err(|_| KeyFetchError::NotText);
            } else {
                return Err(KeyFetchError::Status { status: reply.status.as_u16(), body: reply.excerpt() });
            }
        }
        Err(KeyFetchError::TooManyRedirects)
    }
}

/// The `jwks_uri` of an OpenID configuration.
fn jwks_uri(configuration: &str) -> Result<String, KeyFetchError> {
    let fields: Value = serde_json::from_str(configuration).map_err(|_| KeyFetchError::NotJson)?;
    fields.get("jwks_uri").and_then(Value::as_str).map(str::to_owned).ok_or(KeyFetchError::NoJwksUri)
}

/// The target of a redirect: a URL, or a path on the same server. Redirects from https to http are refused.
fn redirected(from: &str, location: &str) -> Result<String, KeyFetchError> {
    let bad = || KeyFetchError::BadLocation(location.to_owned());
    let target: Uri = location.parse().map_err(|_| bad())?;
    if target.scheme().is_none() {
        let mut parts = from.parse::<Uri>().map_err(|_| bad())?.into_parts();
        parts.path_and_query = target.path_and_query().cloned();
        return Uri::from_parts(parts).map(|uri| uri.to_string()).map_err(|_| bad());
    }
    if from.starts_with("https:") && target.scheme_str() != Some("https") {
        return Err(KeyFetchError::InsecureRedirect);
    }
    Ok(location.to_owned())
}
