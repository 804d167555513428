//! Queries to the Consul agents: fail-over between them, blocking and stale queries. A response that may be incomplete
//! is an error, so that it never removes a service.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::HeaderMap;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::error::ConsulError;
use super::options::ConsulOptions;
use crate::disk;
use crate::health::SourceHealth;
use crate::http::{self as client, BudgetShare, HttpClient, RequestLimits};
use crate::registry::adaptive_timeout::AdaptiveTimeout;
use crate::registry::fetch_error::FetchError;

/// One response may use the memory budget divided by this.
const SHARES: usize = 4;
/// The longest wait that Consul accepts.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// The agents of one registry.
#[derive(Debug)]
pub(super) struct Agents {
    client: HttpClient,
    bases: Vec<String>,
    /// Index of the agent in use, modulo their number.
    current: AtomicUsize,
    options: ConsulOptions,
    health: SourceHealth,
    timeout: AdaptiveTimeout,
}

/// One query.
#[derive(Clone, Copy, Debug)]
pub(super) struct CatalogQuery<'a> {
    pub(super) path: &'a str,
    /// Additional parameters, each with its leading `&`.
    pub(super) parameters: &'a str,
    /// The query blocks until the index exceeds this one; 0 for an immediate response.
    pub(super) index: u64,
}

/// A complete response.
#[derive(Debug)]
pub(super) struct QueryResponse<T> {
    pub(super) value: T,
    pub(super) index: u64,
    /// Consul left out entries that the ACL token may not read.
    pub(super) is_filtered: bool,
    /// Its share of the memory budget, held as long as the value.
    pub(super) _share: BudgetShare,
}

impl Agents {
    pub(super) fn new(options: &ConsulOptions, health: SourceHealth) -> Result<Agents, client::HttpError> {
        let bases: Vec<String> = options.addresses.iter().map(|a| a.trim_end_matches('/').to_owned()).collect();
        // Hundreds of blocking queries may return at once and are repeated: their connections must be kept.
        let client = HttpClient::new(&options.tls.http_options(&bases, options.watches + 16, options.max_bytes)?)?;
        let timeout = AdaptiveTimeout::new(options.timeout.0);
        Ok(Agents { client, bases, current: AtomicUsize::new(0), options: options.clone(), health, timeout })
    }

    /// Queries the current agent, then the others in turn.
    pub(super) async fn query<T: DeserializeOwned + Send + 'static>(
        &self,
        query: CatalogQuery<'_>,
    ) -> Result<QueryResponse<T>, ConsulError> {
        let mut failures = Vec::new();
        for _ in 0..self.bases.len() {
            let turn = self.current.load(Ordering::Relaxed);
            let base = &self.bases[turn % self.bases.len()];
            match self.query_agent(base, query).await {
                Ok(response) => return Ok(response),
                Err(failure) => failures.push(failure),
            }
            // The first of several concurrent failures switches all queries to the next agent.
            let _ = self.current.compare_exchange(turn, turn + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
        Err(ConsulError::AllAgents(failures))
    }

    /// Queries, and repeats a blocking query without blocking when one of the `known` ids is missing. A blocking query
    /// with a token that was revoked or lost rights may return fewer entries without the header that says so.
    pub(super) async fn query_complete<T: DeserializeOwned + Send + 'static>(
        &self,
        query: CatalogQuery<'_>,
        known: &mut BTreeSet<String>,
        ids: impl Fn(&T) -> BTreeSet<String>,
    ) -> Result<QueryResponse<T>, ConsulError> {
        let mut response: QueryResponse<T> = self.query(query).await?;
        if self.options.token_file.is_none() {
            return Ok(response);
        }
        let mut now = ids(&response.value);
        if query.index > 0 && !now.is_superset(known) {
            response = self.query(CatalogQuery { index: 0, ..query }).await?;
            now = ids(&response.value);
        }
        if !response.is_filtered {
            *known = now;
        }
        Ok(response)
    }

    async fn query_agent<T: DeserializeOwned + Send + 'static>(
        &self,
        base: &str,
        query: CatalogQuery<'_>,
    ) -> Result<QueryResponse<T>, ConsulError> {
        let reply = self.get(base, query, self.options.stale).await?;
        if self.options.stale && is_too_stale(&reply, self.options.max_stale.0) {
            return read(self.get(base, query, false).await?).await;
        }
        read(reply).await
    }

    async fn get(&self, base: &str, query: CatalogQuery<'_>, stale: bool) -> Result<client::HttpReply, ConsulError> {
        let url = format!("{base}{}?{}", query.path, self.parameters(query, stale));
        let wait = if query.index > 0 { self.wait() } else { Duration::ZERO };
        // Consul adds up to a sixteenth of the wait as jitter.
        let waiting = wait + wait / 16;
        let (headers, timeout, started) = (self.headers()?, self.timeout.current(), Instant::now());
        let limits =
            RequestLimits { time: waiting + timeout, silence: timeout, bytes: self.options.max_bytes / SHARES };
        self.health.count_request();
        let reply = self.client.get(&url, &headers, limits);
        let reply = self.health.while_waiting(waiting + self.options.timeout.0, &client::shown(&url), reply).await;
        match &reply {
            // The duration of a blocking query says nothing about the speed of the agent.
            Ok(_) if query.index == 0 => self.timeout.answered(started.elapsed()),
            Err(client::HttpError::Late { .. }) => self.timeout.timed_out(timeout),
            Ok(_) | Err(_) => {}
        }
        let reply = reply?;
        if !reply.status.is_success() {
            return Err(FetchError::status(&format!("{base}{}", query.path), &reply).into());
        }
        if reply.header("x-consul-knownleader") == Some("false") {
            return Err(ConsulError::NoLeader(client::shown(base)));
        }
        Ok(reply)
    }

    fn parameters(&self, query: CatalogQuery<'_>, stale: bool) -> String {
        let o = &self.options;
        let scope =
            [("dc", &o.datacenter), ("ns", &o.consul_namespace), ("partition", &o.partition), ("peer", &o.peer)];
        let mut text = String::from(if stale { "stale" } else { "default" });
        for (name, value) in scope.into_iter().filter(|(_, value)| !value.is_empty()) {
            text.push_str(&format!("&{name}={}", escaped(value)));
        }
        if query.index > 0 {
            text.push_str(&format!("&index={}&wait={}s", query.index, self.wait().as_secs()));
        }
        text.push_str(query.parameters);
        text
    }

    fn wait(&self) -> Duration {
        self.options.wait.0.clamp(Duration::from_secs(1), LONGEST_WAIT)
    }

    /// The token file is read for each query, so that it can be replaced.
    fn headers(&self) -> Result<HeaderMap, ConsulError> {
        let mut headers = HeaderMap::new();
        if let Some(file) = &self.options.token_file {
            let text = disk::text(file).map_err(|error| FetchError::Credential {
                what: "token",
                file: file.clone(),
                error,
            })?;
            headers.extend([client::header("x-consul-token", text.trim())?]);
        }
        Ok(headers)
    }
}

async fn read<T: DeserializeOwned + Send + 'static>(reply: client::HttpReply) -> Result<QueryResponse<T>, ConsulError> {
    let index = reply.header("x-consul-index").and_then(|text| text.parse().ok()).unwrap_or(0);
    let is_filtered = reply.header("x-consul-results-filtered-by-acls") == Some("true");
    let (value, share) = reply.json().await?;
    Ok(QueryResponse { value, index, is_filtered, _share: share })
}

/// Followers report the time since their last contact with the leader, in milliseconds.
fn is_too_stale(reply: &client::HttpReply, limit: Duration) -> bool {
    let age = reply.header("x-consul-lastcontact").and_then(|text| text.parse().ok()).map(Duration::from_millis);
    age.is_some_and(|age| age > limit)
}

/// The position of a watch in the sequence of Consul's indexes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IndexProgress {
    /// The next query blocks until the index exceeds this one; 0 for an immediate response.
    pub(super) index: u64,
    was_filtered: bool,
}

/// What a response means to a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexStep {
    New,
    /// The index did not change.
    Unchanged,
    /// The index went backwards: the watch starts again without an index.
    Restart,
}

impl IndexProgress {
    /// As Consul's documentation demands, an index that went backwards restarts the watch, and an index of 0, which
    /// would not block, counts as 1. Rights of a token have no index, so a filtered response is always new, and so is
    /// the first unfiltered one after it.
    pub(super) fn step<T>(&mut self, response: &QueryResponse<T>) -> IndexStep {
        let was = *self;
        if response.index < was.index {
            *self = IndexProgress::default();
            return IndexStep::Restart;
        }
        *self = IndexProgress { index: response.index.max(1), was_filtered: response.is_filtered };
        let is_complete = !was.was_filtered && !response.is_filtered;
        if is_complete && was.index > 0 && response.index == was.index { IndexStep::Unchanged } else { IndexStep::New }
    }
}

/// Percent-encoded text for a path or a query.
pub(super) fn escaped(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::{BudgetShare, IndexProgress, IndexStep, QueryResponse, escaped};

    fn response(index: u64, is_filtered: bool) -> QueryResponse<()> {
        QueryResponse { value: (), index, is_filtered, _share: BudgetShare::default() }
    }

    /// Steps of responses with these indexes, and the index after each; `true` for a filtered response.
    fn steps(responses: &[(u64, bool)]) -> Vec<(IndexStep, u64)> {
        let mut progress = IndexProgress::default();
        let mut step = |&(index, is_filtered)| (progress.step(&response(index, is_filtered)), progress.index);
        responses.iter().map(&mut step).collect()
    }

    #[test]
    fn an_index_that_goes_backwards_restarts_the_watch() {
        let whole = |indexes: &[u64]| steps(&indexes.iter().map(|index| (*index, false)).collect::<Vec<_>>());
        assert_eq!(whole(&[7, 7, 9]), [(IndexStep::New, 7), (IndexStep::Unchanged, 7), (IndexStep::New, 9)]);
        assert_eq!(whole(&[9, 3, 3]), [(IndexStep::New, 9), (IndexStep::Restart, 0), (IndexStep::New, 3)]);
        assert_eq!(whole(&[0]), [(IndexStep::New, 1)]);
    }

    #[test]
    fn filtered_responses_are_new_without_a_new_index() {
        let (new, unchanged) = ((IndexStep::New, 7), (IndexStep::Unchanged, 7));
        assert_eq!(steps(&[(7, false), (7, true), (7, true), (7, false), (7, false)]), [new, new, new, new, unchanged]);
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(escaped("a b/c&d"), "a%20b%2Fc%26d");
    }
}
