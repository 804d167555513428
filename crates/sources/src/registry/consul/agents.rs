//! Questions to Consul's agents: which one is asked, how long it may wait, and which answers count.
//! An answer that may be incomplete is an error here, so that nothing is ever removed because of it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::HeaderMap;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::options::ConsulOptions;
use crate::disk;
use crate::health::SourceHealth;
use crate::http::{self as client, BudgetShare, HttpClient, RequestLimits};
use crate::registry::adaptive_timeout::AdaptiveTimeout;

/// One answer may have this part of what all together may have.
const SHARES: usize = 4;
/// Consul refuses to wait longer.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// The agents of one registry.
#[derive(Debug)]
pub(super) struct Agents {
    client: HttpClient,
    bases: Vec<String>,
    /// The one to ask, counted on without end.
    current: AtomicUsize,
    options: ConsulOptions,
    health: SourceHealth,
    timeout: AdaptiveTimeout,
}

/// What to ask for.
#[derive(Clone, Copy, Debug)]
pub(super) struct CatalogQuery<'a> {
    pub(super) path: &'a str,
    /// Further parameters, each with its `&`.
    pub(super) parameters: &'a str,
    /// Wait for an index beyond this one; 0 for an answer at once.
    pub(super) index: u64,
}

/// An answer that counts.
#[derive(Debug)]
pub(super) struct QueryResponse<T> {
    pub(super) value: T,
    pub(super) index: u64,
    /// Something was left out because the token may not see it.
    pub(super) is_filtered: bool,
    /// What it takes of the registry's memory for answers, as long as it is held.
    pub(super) _share: BudgetShare,
}

impl Agents {
    pub(super) fn new(options: &ConsulOptions, health: SourceHealth) -> Result<Agents, client::HttpError> {
        let bases: Vec<String> = options.addresses.iter().map(|a| a.trim_end_matches('/').to_owned()).collect();
        // Questions that wait come back at once in their hundreds: their connections must stay.
        let client = HttpClient::new(&options.tls.options(&bases, options.watches + 16, options.max_bytes)?)?;
        let timeout = AdaptiveTimeout::new(options.timeout.0);
        Ok(Agents { client, bases, current: AtomicUsize::new(0), options: options.clone(), health, timeout })
    }

    /// Asks the current agent, then the others in turn.
    pub(super) async fn ask<T: DeserializeOwned + Send + 'static>(
        &self,
        question: CatalogQuery<'_>,
    ) -> Result<QueryResponse<T>, String> {
        let mut failures = Vec::new();
        for _ in 0..self.bases.len() {
            let turn = self.current.load(Ordering::Relaxed);
            let base = &self.bases[turn % self.bases.len()];
            match self.ask_one(base, question).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failures.push(failure),
            }
            // Whoever fails first moves everybody on, once.
            let _ = self.current.compare_exchange(turn, turn + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
        Err(failures.join("; "))
    }

    /// Asks, and asks once more, plainly, when something that was `there` is missing from the answer. Where a token
    /// lost rights or was revoked, Consul may answer a question that waits with less and not say that it did.
    pub(super) async fn ask_whole<T: DeserializeOwned + Send + 'static>(
        &self,
        question: CatalogQuery<'_>,
        there: &mut BTreeSet<String>,
        ids: impl Fn(&T) -> BTreeSet<String>,
    ) -> Result<QueryResponse<T>, String> {
        let mut answer: QueryResponse<T> = self.ask(question).await?;
        if self.options.token_file.is_none() {
            return Ok(answer);
        }
        let mut now = ids(&answer.value);
        if question.index > 0 && !now.is_superset(there) {
            answer = self.ask(CatalogQuery { index: 0, ..question }).await?;
            now = ids(&answer.value);
        }
        if !answer.is_filtered {
            *there = now;
        }
        Ok(answer)
    }

    async fn ask_one<T: DeserializeOwned + Send + 'static>(
        &self,
        base: &str,
        question: CatalogQuery<'_>,
    ) -> Result<QueryResponse<T>, String> {
        let reply = self.get(base, question, self.options.stale).await?;
        if self.options.stale && is_too_old(&reply, self.options.max_stale.0) {
            return read(self.get(base, question, false).await?).await;
        }
        read(reply).await
    }

    async fn get(&self, base: &str, question: CatalogQuery<'_>, stale: bool) -> Result<client::HttpReply, String> {
        let url = format!("{base}{}?{}", question.path, self.query(question, stale));
        let wait = if question.index > 0 { self.wait() } else { Duration::ZERO };
        // Consul adds up to a sixteenth to the wait.
        let waiting = wait + wait / 16;
        let (headers, timeout, begun) = (self.headers()?, self.timeout.current(), Instant::now());
        let limits =
            RequestLimits { time: waiting + timeout, silence: timeout, bytes: self.options.max_bytes / SHARES };
        self.health.count_request();
        let reply = self.client.get(&url, &headers, limits);
        let reply = self.health.while_waiting(waiting + self.options.timeout.0, &client::shown(&url), reply).await;
        match &reply {
            // How long a question that waits was held back is not how long its answer takes.
            Ok(_) if question.index == 0 => self.timeout.answered(begun.elapsed()),
            Err(client::HttpError::Late { .. }) => self.timeout.timed_out(timeout),
            Ok(_) | Err(_) => {}
        }
        let reply = reply.map_err(|e| e.to_string())?;
        if !reply.status.is_success() {
            let asked = client::shown(&format!("{base}{}", question.path));
            return Err(format!("{asked} answered {}: {}", reply.status.as_u16(), reply.excerpt()));
        }
        if reply.header("x-consul-knownleader") == Some("false") {
            return Err(format!("{} knows no leader: what it has may be old", client::shown(base)));
        }
        Ok(reply)
    }

    fn query(&self, question: CatalogQuery<'_>, stale: bool) -> String {
        let o = &self.options;
        let scope =
            [("dc", &o.datacenter), ("ns", &o.consul_namespace), ("partition", &o.partition), ("peer", &o.peer)];
        let mut query = String::from(if stale { "stale" } else { "default" });
        for (name, value) in scope.into_iter().filter(|(_, value)| !value.is_empty()) {
            query.push_str(&format!("&{name}={}", escaped(value)));
        }
        if question.index > 0 {
            query.push_str(&format!("&index={}&wait={}s", question.index, self.wait().as_secs()));
        }
        query.push_str(question.parameters);
        query
    }

    fn wait(&self) -> Duration {
        self.options.wait.0.clamp(Duration::from_secs(1), LONGEST_WAIT)
    }

    /// The token is read for every question: whoever replaces the file need not tell us.
    fn headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        if let Some(file) = &self.options.token_file {
            let text = disk::text(file).map_err(|e| format!("could not read the token in {}: {e}", file.display()))?;
            headers.extend([client::header("x-consul-token", text.trim()).map_err(|e| e.to_string())?]);
        }
        Ok(headers)
    }
}

async fn read<T: DeserializeOwned + Send + 'static>(reply: client::HttpReply) -> Result<QueryResponse<T>, String> {
    let index = reply.header("x-consul-index").and_then(|text| text.parse().ok()).unwrap_or(0);
    let is_filtered = reply.header("x-consul-results-filtered-by-acls") == Some("true");
    let (value, share) = reply.json().await.map_err(|e| format!("could not read Consul's answer: {e}"))?;
    Ok(QueryResponse { value, index, is_filtered, _share: share })
}

/// The age is told by servers that answer without asking the leader, in milliseconds.
fn is_too_old(reply: &client::HttpReply, limit: Duration) -> bool {
    let age = reply.header("x-consul-lastcontact").and_then(|text| text.parse().ok()).map(Duration::from_millis);
    age.is_some_and(|age| age > limit)
}

/// How far a watcher has come with its question.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IndexProgress {
    /// Wait for an index beyond this one; 0 for an answer at once.
    pub(super) index: u64,
    was_filtered: bool,
}

/// What an answer is to a watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexStep {
    New,
    /// It says what the one before said.
    Same,
    /// Its index went backwards: the question is to be asked anew, as if it were the first.
    Anew,
}

impl IndexProgress {
    /// Consul asks for two things: an index that went backwards starts anew, and one of 0, which would never
    /// wait, counts as 1. What a token may see has no index, so an answer that leaves something out is always
    /// looked at, and so is the first whole one after it.
    pub(super) fn step<T>(&mut self, answer: &QueryResponse<T>) -> IndexStep {
        let was = *self;
        if answer.index < was.index {
            *self = IndexProgress::default();
            return IndexStep::Anew;
        }
        *self = IndexProgress { index: answer.index.max(1), was_filtered: answer.is_filtered };
        let is_whole = !was.was_filtered && !answer.is_filtered;
        if is_whole && was.index > 0 && answer.index == was.index { IndexStep::Same } else { IndexStep::New }
    }
}

/// Text as part of a path or a query.
pub(super) fn escaped(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::{BudgetShare, IndexProgress, IndexStep, QueryResponse, escaped};

    fn answer(index: u64, is_filtered: bool) -> QueryResponse<()> {
        QueryResponse { value: (), index, is_filtered, _share: BudgetShare::default() }
    }

    /// The steps that answers with these indexes make, and the index after each; `true`: something was left out.
    fn steps(answers: &[(u64, bool)]) -> Vec<(IndexStep, u64)> {
        let mut progress = IndexProgress::default();
        let mut step = |&(index, is_filtered)| (progress.step(&answer(index, is_filtered)), progress.index);
        answers.iter().map(&mut step).collect()
    }

    #[test]
    fn an_index_that_goes_backwards_starts_anew() {
        let whole = |indexes: &[u64]| steps(&indexes.iter().map(|index| (*index, false)).collect::<Vec<_>>());
        assert_eq!(whole(&[7, 7, 9]), [(IndexStep::New, 7), (IndexStep::Same, 7), (IndexStep::New, 9)]);
        assert_eq!(whole(&[9, 3, 3]), [(IndexStep::New, 9), (IndexStep::Anew, 0), (IndexStep::New, 3)]);
        assert_eq!(whole(&[0]), [(IndexStep::New, 1)]);
    }

    #[test]
    fn what_a_token_may_see_changes_without_an_index() {
        let (new, same) = ((IndexStep::New, 7), (IndexStep::Same, 7));
        assert_eq!(steps(&[(7, false), (7, true), (7, true), (7, false), (7, false)]), [new, new, new, new, same]);
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(escaped("a b/c&d"), "a%20b%2Fc%26d");
    }
}
