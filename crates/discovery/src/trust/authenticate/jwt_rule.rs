//! Tokens of an issuer other than Kubernetes (`JWT_RULE`). Keys come from a file or from a URL, and are read again
//! regularly; keys that cannot be read leave the last good ones in use.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::HeaderMap;
use serde::Deserialize;
use serde_json::Value;
use sources::http::{HttpClient, HttpOptions, RequestLimits};
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use tracing::info;
use trust::identity::SpiffeId;
use trust::token::{KeySet, KeySetError, TokenError, TokenRules};

use super::super::Trust;
use super::super::problems::Topic;
use super::{Caller, Reason};

const FILE_INTERVAL: Duration = Duration::from_secs(1);
const URL_INTERVAL: Duration = Duration::from_secs(20 * 60);
const RETRY: Duration = Duration::from_secs(5);
const LIMITS: RequestLimits =
    RequestLimits { time: Duration::from_secs(10), silence: Duration::from_secs(5), bytes: 1 << 20 };

/// Why `JWT_RULE` or its keys cannot be used.
#[derive(Debug, Error)]
pub(crate) enum JwtRuleError {
    #[error("could not read JWT_RULE: {0}")]
    Json(#[from] serde_json::Error),
    #[error("could not use JWT_RULE: {0} is empty")]
    Empty(&'static str),
    #[error("could not read token keys from {place}: {reason}")]
    Read { place: String, reason: String },
    #[error("could not use the token keys of {place}: {reason}")]
    Keys { place: String, reason: KeySetError },
}

/// The content of `JWT_RULE`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct JwtRule {
    issuer: String,
    #[serde(default)]
    jwks_uri: String,
    #[serde(default)]
    audiences: Vec<String>,
}

impl JwtRule {
    pub(crate) fn parse(text: &str) -> Result<JwtRule, JwtRuleError> {
        let rule: JwtRule = serde_json::from_str(text)?;
        match (rule.issuer.is_empty(), rule.audiences.is_empty()) {
            (true, _) => Err(JwtRuleError::Empty("issuer")),
            (_, true) => Err(JwtRuleError::Empty("audiences")),
            _ => Ok(rule),
        }
    }

    fn file(&self) -> Option<PathBuf> {
        self.jwks_uri.strip_prefix("file://").map(PathBuf::from)
    }

    fn place(&self) -> String {
        if self.jwks_uri.is_empty() { self.issuer.clone() } else { self.jwks_uri.clone() }
    }
}

/// A rule with its current keys. Clones share the keys.
#[derive(Clone)]
pub(crate) struct TokenKeys {
    rule: Arc<JwtRule>,
    rules: Arc<TokenRules>,
    keys: Arc<ArcSwapOption<KeySet>>,
}

impl TokenKeys {
    /// Keys of a file are read at once: an unusable file is an error at start.
    pub(crate) fn load(rule: JwtRule) -> Result<TokenKeys, JwtRuleError> {
        let rules = Arc::new(TokenRules { issuer: rule.issuer.clone(), audiences: rule.audiences.clone() });
        let loaded = TokenKeys { rule: Arc::new(rule), rules, keys: Arc::default() };
        if let Some(path) = loaded.rule.file() {
            let text = sources::disk::text(&path).map_err(|error| loaded.unreadable(error))?;
            loaded.store(&text)?;
        }
        Ok(loaded)
    }

    pub(super) fn verify(&self, token: &str, trust_domain: &str, now: i64) -> Result<Caller, Reason> {
        let keys = self.keys.load_full().ok_or_else(|| Reason::Unavailable("there are no keys yet".to_owned()))?;
        let claims = keys.verify(token, &self.rules, now).map_err(|error| match error {
            TokenError::Expired => Reason::Expired(error.to_string()),
            other => Reason::refused(other),
        })?;
        let identity = SpiffeId::of_service_account(&claims.subject, trust_domain).map_err(Reason::refused)?;
        Ok(Caller { identities: vec![identity], expires: Some(claims.expires) })
    }

    /// Reads keys again until cancelled.
    pub(crate) async fn watch(self, trust: Arc<Trust>, stop: CancellationToken) {
        let mut last = None;
        loop {
            let pause = match self.read().await.and_then(|text| self.update(text, &mut last)) {
                Ok(()) => {
                    trust.problems.solved(Topic::TokenKeys);
                    if self.rule.file().is_some() { FILE_INTERVAL } else { URL_INTERVAL }
                }
                Err(error) => {
                    trust.problems.error(Topic::TokenKeys, format!("{error}; the last good keys stay in use"));
                    RETRY
                }
            };
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
        }
    }

    fn update(&self, text: String, last: &mut Option<String>) -> Result<(), JwtRuleError> {
        if last.as_ref() != Some(&text) {
            self.store(&text)?;
            info!(place = self.rule.place(), "loaded token keys");
            *last = Some(text);
        }
        Ok(())
    }

    fn store(&self, text: &str) -> Result<(), JwtRuleError> {
        let keys = KeySet::parse(text).map_err(|reason| JwtRuleError::Keys { place: self.rule.place(), reason })?;
        self.keys.store(Some(Arc::new(keys)));
        Ok(())
    }

    fn unreadable(&self, reason: impl ToString) -> JwtRuleError {
        JwtRuleError::Read { place: self.rule.place(), reason: reason.to_string() }
    }

    async fn read(&self) -> Result<String, JwtRuleError> {
        if let Some(path) = self.rule.file() {
            let read = tokio::task::spawn_blocking(move || sources::disk::text(&path)).await;
            return read.map_err(|error| self.unreadable(error))?.map_err(|error| self.unreadable(error));
        }
        let client = HttpClient::new(&HttpOptions::default()).map_err(|error| self.unreadable(error))?;
        let url = match &*self.rule.jwks_uri {
            "" => self.discovered(&client).await?,
            url => url.to_owned(),
        };
        self.fetch(&client, &url).await
    }

    /// The key set's URL in the issuer's OpenID configuration.
    async fn discovered(&self, client: &HttpClient) -> Result<String, JwtRuleError> {
        let url = format!("{}/.well-known/openid-configuration", self.rule.issuer.trim_end_matches('/'));
        let text = self.fetch(client, &url).await?;
        let found: Value = serde_json::from_str(&text).map_err(|error| self.unreadable(error))?;
        let url = found.get("jwks_uri").and_then(Value::as_str);
        url.map(str::to_owned).ok_or_else(|| self.unreadable("the OpenID configuration has no jwks_uri"))
    }

    async fn fetch(&self, client: &HttpClient, url: &str) -> Result<String, JwtRuleError> {
        let reply = client.get(url, &HeaderMap::new(), LIMITS).await.map_err(|error| self.unreadable(error))?;
        if !reply.status.is_success() {
            return Err(self.unreadable(format!("status {}", reply.status)));
        }
        String::from_utf8(reply.body.to_vec()).map_err(|_| self.unreadable("the response is not UTF-8"))
    }
}
