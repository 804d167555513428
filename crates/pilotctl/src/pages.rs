//! Pages of a running pilot-discovery.

use anyhow::{Context, Result};
use clap::Args;
use http::Method;
use net::http::{ExchangeError, call};
use serde_json::Value;

/// Exit status if the server cannot be reached.
pub(crate) const NOT_REACHABLE: u8 = 3;

/// Which server.
#[derive(Args)]
pub(crate) struct PageServer {
    /// Monitoring address of pilot-discovery, HOST:PORT
    #[arg(long, default_value = "127.0.0.1:15014")]
    server: String,
}

impl PageServer {
    /// The body of a page.
    pub(crate) async fn text(&self, path: &str) -> Result<String> {
        let address = self.server.trim_start_matches("http://").trim_end_matches('/');
        let body = call(Method::GET, address, path, String::new()).await;
        let body = body.with_context(|| format!("could not read {path} of pilot-discovery at {address}"))?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// A page as JSON.
    pub(crate) async fn json(&self, path: &str) -> Result<Value> {
        let text = self.text(path).await?;
        serde_json::from_str(&text).with_context(|| format!("could not read {path} as JSON"))
    }
}

/// Whether an error means that no server answered.
pub(crate) fn is_unreachable(error: &anyhow::Error) -> bool {
    let cause = error.chain().find_map(|cause| cause.downcast_ref::<ExchangeError>());
    matches!(cause, Some(ExchangeError::Connect { .. } | ExchangeError::Http(_)))
}

/// A text for use in a query.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                escaped.push(char::from(byte))
            }
            other => escaped.push_str(&format!("%{other:02X}")),
        }
    }
    escaped
}
