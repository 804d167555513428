//! Fetches the keys that tokens are checked with, for policies that name where keys are instead of the keys.
//! A fetch that fails costs nothing that was there: the last good keys stay, and the next try comes later.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::http::{AddressPolicy, HttpClient, HttpError, HttpOptions, RequestLimits, TrustRoots};
use crate::source::{ChangeSender, Source, SourceError};
use http::{HeaderMap, Uri};
use model::change::{Change, SourceId};
use model::config::Key;
use model::fetch_requests::{FetchRequests, KeyRequest, KeySource};
use model::names::Str;
use model::problem::Problem;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// A key set is a few kilobytes.
const LARGEST: usize = 1 << 20;
/// Nobody waits longer than this for one, whatever a policy says.
const LONGEST_FETCH: Duration = Duration::from_secs(30);
/// Serving begins without keys that do not come in this time; their tokens are refused until they do.
const LONGEST_START: Duration = Duration::from_secs(10);
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(5 * 60);
/// Keys that could not be fetched again for so long are no longer trusted, as in upstream.
const TRUSTED: Duration = Duration::from_secs(7 * 24 * 3600);
const AT_ONCE: usize = 8;

/// The source of keys. It asks for nothing until it is told what is wanted.
pub struct Jwks {
    wanted: watch::Receiver<Option<FetchRequests>>,
    refresh: Duration,
    fetcher: Fetcher,
    held: BTreeMap<KeySource, KeySetState>,
    problems: Vec<Problem>,
    is_synced: bool,
}

/// What is known of one key set.
struct KeySetState {
    wish: KeyRequest,
    keys: Option<Str>,
    fetched: Option<Instant>,
    failure: Option<String>,
    failures: u32,
    due: Instant,
}

type FetchTasks = JoinSet<(KeySource, Result<Str, String>)>;

impl Jwks {
    /// Fetches what is wanted, again after each `refresh`. Nothing is wanted before the receiver holds a value:
    /// the first one must name all that the mesh wanted at its start.
    pub fn new(wanted: watch::Receiver<Option<FetchRequests>>, refresh: Duration, reach: AddressPolicy) -> Jwks {
        let fetcher = Fetcher { reach, client: Arc::default() };
        Jwks { wanted, refresh, fetcher, held: BTreeMap::new(), problems: Vec::new(), is_synced: false }
    }

    /// Takes up what is wanted now, and drops what is not.
    fn adopt(&mut self) -> Vec<Change> {
        let wanted = self.wanted.borrow_and_update().clone().unwrap_or_default();
        let (kept, dropped): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.held).into_iter().partition(|(source, _)| wanted.keys.contains_key(source));
        self.held = kept;
        for (source, wish) in wanted.keys {
            self.held.entry(source).or_insert_with(KeySetState::new).wish = wish;
        }
        dropped.into_keys().map(|source| Change::KeySet(source, None)).collect()
    }

    /// Begins the fetches that are due.
    fn begin(&mut self, busy: &mut BTreeSet<KeySource>, answers: &mut FetchTasks) {
        let now = Instant::now();
        for (source, held) in &self.held {
            if busy.len() >= AT_ONCE {
                return;
            }
            if held.due <= now && busy.insert(source.clone()) {
                let (fetcher, source, limit) = (self.fetcher.clone(), source.clone(), held.wish.timeout);
                answers.spawn(async move {
                    let found = fetcher.keys(&source, limit.min(LONGEST_FETCH)).await;
                    (source, found)
                });
            }
        }
    }

    /// What an answer changes.
    fn take_in(&mut self, source: KeySource, answer: Result<Str, String>) -> Option<Change> {
        let refresh = self.refresh;
        let held = self.held.get_mut(&source)?;
        match answer {
            Ok(keys) => held.succeed(keys, refresh),
            Err(reason) => held.fail(&reason, refresh),
        }
        .then(|| Change::KeySet(source, held.keys.clone()))
    }

    /// All that is wrong now, if that is something else than before.
    fn problems(&mut self) -> Option<Change> {
        let found: Vec<Problem> = self.held.iter().flat_map(|(source, held)| held.problems(source)).collect();
        if found == self.problems {
            return None;
        }
        self.problems.clone_from(&found);
        Some(Change::Problems(found))
    }

    /// Said once every key set that was wanted at the start was tried, or took too long.
    fn synced(&mut self, started: Instant) -> Option<Change> {
        let is_tried = |held: &KeySetState| held.fetched.is_some() || held.failures > 0;
        let is_over = self.held.values().all(is_tried) || started.elapsed() >= LONGEST_START;
        let is_first = is_over && !self.is_synced;
        self.is_synced |= is_over;
        is_first.then_some(Change::Synced)
    }

    /// When to look again although nothing happened.
    fn next_turn(&self, busy: &BTreeSet<KeySource>, started: Instant) -> Option<Instant> {
        let idle = self.held.iter().filter(|(source, _)| !busy.contains(*source));
        let due = if busy.len() < AT_ONCE { idle.map(|(_, held)| held.due).min() } else { None };
        let start = (!self.is_synced).then_some(started + LONGEST_START);
        due.into_iter().chain(start).min()
    }
}

impl Source for Jwks {
    fn id(&self) -> SourceId {
        SourceId("jwks".into())
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        self.wanted.wait_for(Option::is_some).await.map_err(|_| SourceError::Closed)?;
        let (started, mut busy, mut answers) = (Instant::now(), BTreeSet::new(), FetchTasks::new());
        let mut changes = self.adopt();
        loop {
            changes.extend(self.problems());
            changes.extend(self.synced(started));
            sender.send(std::mem::take(&mut changes)).await?;
            self.begin(&mut busy, &mut answers);
            let turn = self.next_turn(&busy, started);
            tokio::select! {
                answer = next(&mut answers) => {
                    let (source, answer) = answer.map_err(|e| SourceError::Failed(e.to_string()))?;
                    busy.remove(&source);
                    changes.extend(self.take_in(source, answer));
                }
                told = self.wanted.changed() => {
                    told.map_err(|_| SourceError::Closed)?;
                    changes = self.adopt();
                }
                () = until(turn) => {}
            }
        }
    }
}

async fn next(answers: &mut FetchTasks) -> Result<(KeySource, Result<Str, String>), tokio::task::JoinError> {
    match answers.join_next().await {
        Some(answer) => answer,
        None => pending().await,
    }
}

async fn until(turn: Option<Instant>) {
    match turn {
        Some(turn) => sleep_until(turn).await,
        None => pending().await,
    }
}

impl KeySetState {
    fn new() -> KeySetState {
        let (wish, due) = (KeyRequest::default(), Instant::now());
        KeySetState { wish, keys: None, fetched: None, failure: None, failures: 0, due }
    }

    /// Notes keys that were fetched; says whether they are other keys than before.
    fn succeed(&mut self, keys: Str, refresh: Duration) -> bool {
        let now = Instant::now();
        (self.fetched, self.due, self.failure, self.failures) = (Some(now), now + refresh, None, 0);
        let is_new = self.keys.as_deref().is_none_or(|known| key_list(known) != key_list(&keys));
        if is_new {
            self.keys = Some(keys);
        }
        is_new
    }

    /// Notes a failure; says whether keys became too old to be kept.
    fn fail(&mut self, reason: &str, refresh: Duration) -> bool {
        let now = Instant::now();
        self.failures = self.failures.saturating_add(1);
        self.failure = Some(reason.to_owned());
        let wait = FIRST_WAIT.saturating_mul(1 << (self.failures - 1).min(16));
        self.due = now + wait.min(LONGEST_WAIT).min(refresh.max(FIRST_WAIT));
        let is_stale = self.fetched.is_some_and(|fetched| now - fetched >= TRUSTED);
        is_stale && self.keys.take().is_some()
    }

    /// The failure, told of every object that wants these keys.
    fn problems(&self, source: &KeySource) -> Vec<Problem> {
        let Some(failure) = &self.failure else { return Vec::new() };
        let told = |by: &Key| {
            let message = format!("could not fetch the keys of {source}: {failure}");
            match self.keys {
                Some(_) => Problem::warning(by.clone(), format!("{message}; the last keys stay in use")),
                None => Problem::error(by.clone(), format!("{message}; until then its tokens are refused")),
            }
        };
        self.wish.by.iter().map(told).collect()
    }
}

/// The keys in no particular order: a server that shuffles them has not changed them.
fn key_list(keys: &str) -> Option<Vec<String>> {
    let set: Value = serde_json::from_str(keys).ok()?;
    let mut list: Vec<String> = set.get("keys")?.as_array()?.iter().map(Value::to_string).collect();
    list.sort();
    Some(list)
}

/// Gets key sets. The client is made for the first one; where that fails, the reason why is every answer.
#[derive(Clone)]
struct Fetcher {
    reach: AddressPolicy,
    client: Arc<OnceLock<Result<HttpClient, HttpError>>>,
}

/// How a redirect is followed at most. Each place is checked as the first one is.
const REDIRECTS: usize = 4;

impl Fetcher {
    fn client(&self) -> Result<&HttpClient, String> {
        let options = |roots| HttpOptions { roots, address_policy: self.reach.clone(), ..HttpOptions::default() };
        // A machine that believes nobody can still fetch over plain text.
        let made =
            || HttpClient::new(&options(TrustRoots::System)).or_else(|_| HttpClient::new(&options(TrustRoots::None)));
        self.client.get_or_init(made).as_ref().map_err(HttpError::to_string)
    }

    async fn keys(&self, source: &KeySource, limit: Duration) -> Result<Str, String> {
        match tokio::time::timeout(limit, self.found(source, limit)).await {
            Ok(found) => found,
            Err(_) => Err(format!("no answer within {limit:?}")),
        }
    }

    async fn found(&self, source: &KeySource, limit: Duration) -> Result<Str, String> {
        let address = match source {
            KeySource::Uri(uri) => uri.to_string(),
            KeySource::Issuer(issuer) => {
                let place = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
                keys_address(&self.text(&place, limit).await?)?
            }
        };
        let text = self.text(&address, limit).await?;
        match key_list(&text) {
            Some(keys) if !keys.is_empty() => Ok(text.into()),
            Some(_) => Err("the answer has no keys in it".to_owned()),
            None => Err("the answer is not a JSON Web Key Set".to_owned()),
        }
    }

    /// The text at an address, redirects followed.
    async fn text(&self, address: &str, time: Duration) -> Result<String, String> {
        let client = self.client()?;
        let mut address = address.to_owned();
        for _ in 0..=REDIRECTS {
            let limits = RequestLimits { time, silence: time, bytes: LARGEST };
            let reply = client.get(&address, &HeaderMap::new(), limits).await.map_err(|e| e.to_string())?;
            if reply.status.is_redirection() {
                let place = reply.header("location").ok_or("a redirect leads nowhere")?;
                address = redirected(&address, place)?;
            } else if reply.status.is_success() {
                let text = String::from_utf8(reply.body);
                return text.map_err(|_| "the answer is not UTF-8".to_owned());
            } else {
                return Err(format!("status {}: {}", reply.status.as_u16(), reply.excerpt()));
            }
        }
        Err(format!("more than {REDIRECTS} redirects"))
    }
}

/// The address of the keys in an OpenID configuration.
fn keys_address(configuration: &str) -> Result<String, String> {
    let fields: Value = serde_json::from_str(configuration).map_err(|_| "the OpenID configuration is not JSON")?;
    let address = fields.get("jwks_uri").and_then(Value::as_str);
    address.map(str::to_owned).ok_or_else(|| "the OpenID configuration names no jwks_uri".to_owned())
}

/// Where a redirect leads: a whole address, or a path of the same server. It never leaves TLS.
fn redirected(from: &str, place: &str) -> Result<String, String> {
    let bad = |_| format!("a redirect leads to {place}, which is no address");
    let target: Uri = place.parse().map_err(bad)?;
    if target.scheme().is_none() {
        let mut parts = from.parse::<Uri>().map_err(bad)?.into_parts();
        parts.path_and_query = target.path_and_query().cloned();
        return Uri::from_parts(parts).map(|uri| uri.to_string()).map_err(|_| format!("a redirect leads to {place}"));
    }
    if from.starts_with("https:") && target.scheme_str() != Some("https") {
        return Err("a redirect leads out of TLS".to_owned());
    }
    Ok(place.to_owned())
}
