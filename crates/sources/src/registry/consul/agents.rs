//! Questions to Consul's agents: which one is asked, how long it may wait, and which answers count.
//! An answer that may be incomplete is an error here, so that nothing is ever removed because of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::HeaderMap;
use serde::de::DeserializeOwned;

use super::options::Options;
use crate::health::Health;
use crate::http::{self as client, Client, Limits};

/// Consul adds up to a sixteenth to the wait; this comes on top for the network and a busy server.
const SLACK: Duration = Duration::from_secs(30);
const MOST_BYTES: usize = 256 << 20;
/// Consul refuses to wait longer.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// The agents of one registry.
#[derive(Debug)]
pub(super) struct Agents {
    client: Client,
    bases: Vec<String>,
    /// The one to ask, counted on without end.
    current: AtomicUsize,
    options: Options,
    health: Health,
}

/// What to ask for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question<'a> {
    pub(super) path: &'a str,
    /// Further parameters, each with its `&`.
    pub(super) parameters: &'a str,
    /// Wait for an index beyond this one; 0 for an answer at once.
    pub(super) index: u64,
}

/// An answer that counts.
#[derive(Clone, Debug)]
pub(super) struct Answer<T> {
    pub(super) value: T,
    pub(super) index: u64,
    /// Something was left out because the token may not see it.
    pub(super) is_filtered: bool,
}

impl Agents {
    pub(super) fn new(options: &Options, health: Health) -> Result<Agents, client::Error> {
        let bases: Vec<String> = options.addresses.iter().map(|a| a.trim_end_matches('/').to_owned()).collect();
        // Questions that wait come back at once in their hundreds: their connections must stay.
        let client = Client::new(&options.tls.options(&bases, options.watches + 16)?)?;
        Ok(Agents { client, bases, current: AtomicUsize::new(0), options: options.clone(), health })
    }

    /// Asks the current agent, then the others in turn.
    pub(super) async fn ask<T: DeserializeOwned>(&self, question: Question<'_>) -> Result<Answer<T>, String> {
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

    async fn ask_one<T: DeserializeOwned>(&self, base: &str, question: Question<'_>) -> Result<Answer<T>, String> {
        let reply = self.get(base, question, self.options.stale).await?;
        if self.options.stale && is_too_old(&reply, self.options.max_stale.0) {
            return read(&self.get(base, question, false).await?);
        }
        read(&reply)
    }

    async fn get(&self, base: &str, question: Question<'_>, stale: bool) -> Result<client::Reply, String> {
        let url = format!("{base}{}?{}", question.path, self.query(question, stale));
        let wait = if question.index > 0 { self.wait() } else { Duration::ZERO };
        let limits = Limits { time: wait + wait / 16 + SLACK, bytes: MOST_BYTES };
        let headers = self.headers()?;
        self.health.asked();
        let reply = self.client.get(&url, &headers, limits).await.map_err(|e| e.to_string())?;
        if !reply.status.is_success() {
            return Err(format!("{base}{} answered {}: {}", question.path, reply.status.as_u16(), reply.excerpt()));
        }
        if reply.header("x-consul-knownleader") == Some("false") {
            return Err(format!("{base} knows no leader: what it has may be old"));
        }
        Ok(reply)
    }

    fn query(&self, question: Question<'_>, stale: bool) -> String {
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
            let text = std::fs::read_to_string(file)
                .map_err(|e| format!("could not read the token in {}: {e}", file.display()))?;
            headers.extend([client::header("x-consul-token", text.trim()).map_err(|e| e.to_string())?]);
        }
        Ok(headers)
    }
}

fn read<T: DeserializeOwned>(reply: &client::Reply) -> Result<Answer<T>, String> {
    let value = serde_json::from_slice(&reply.body).map_err(|e| format!("could not read Consul's answer: {e}"))?;
    let index = reply.header("x-consul-index").and_then(|text| text.parse().ok()).unwrap_or(0);
    let is_filtered = reply.header("x-consul-results-filtered-by-acls") == Some("true");
    Ok(Answer { value, index, is_filtered })
}

/// The age is told by servers that answer without asking the leader, in milliseconds.
fn is_too_old(reply: &client::Reply, limit: Duration) -> bool {
    let age = reply.header("x-consul-lastcontact").and_then(|text| text.parse().ok()).map(Duration::from_millis);
    age.is_some_and(|age| age > limit)
}

/// The index to wait beyond next. Consul asks for two things: one that went backwards starts anew, and one of 0
/// would never wait.
pub(super) fn next_index(last: u64, answered: u64) -> u64 {
    if answered < last { 0 } else { answered.max(1) }
}

/// Text as part of a path or a query.
pub(super) fn escaped(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::{escaped, next_index};

    #[test]
    fn an_index_that_goes_backwards_starts_anew() {
        assert_eq!([next_index(0, 7), next_index(7, 7), next_index(7, 9)], [7, 7, 9]);
        assert_eq!(next_index(9, 3), 0);
        assert_eq!(next_index(0, 0), 1);
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(escaped("a b/c&d"), "a%20b%2Fc%26d");
    }
}
