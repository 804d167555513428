//! A complete HTTP response, and its decoding within the client's memory budget.

use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;

use crate::http::budget::BudgetShare;
use crate::http::error::HttpError;

/// Bodies from this size on are decoded off the async threads: a debug build takes tens of milliseconds for them.
const LONG_BODY: usize = 256 << 10;

/// A complete response with any status.
#[derive(Debug)]
pub struct HttpReply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    /// The requested URL without secrets.
    pub(super) url: String,
    pub(super) share: BudgetShare,
}

impl HttpReply {
    /// The text of a header; `None` where it is absent or not text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body decoded as JSON, with its share of the client's memory budget, to be dropped together.
    pub async fn json<T: DeserializeOwned + Send + 'static>(self) -> Result<(T, BudgetShare), HttpError> {
        if self.body.len() < LONG_BODY {
            return self.decoded();
        }
        let url = self.url.clone();
        let decoding = tokio::task::spawn_blocking(|| self.decoded());
        decoding.await.unwrap_or_else(|e| Err(HttpError::Decode { url, reason: e.to_string() }))
    }

    fn decoded<T: DeserializeOwned>(mut self) -> Result<(T, BudgetShare), HttpError> {
        let (url, bytes) = (self.url, self.body.len());
        if !self.share.reserve_decoded(&self.body) {
            return Err(HttpError::TooLargeToDecode { url, bytes });
        }
        let decoded = serde_json::from_slice(&self.body);
        let value = decoded.map_err(|e| HttpError::Decode { url, reason: e.to_string() })?;
        self.share.release_body(bytes);
        Ok((value, self.share))
    }

    /// The beginning of the body as text, for messages.
    pub fn excerpt(&self) -> String {
        let text = String::from_utf8_lossy(&self.body[..self.body.len().min(200)]).into_owned();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}
