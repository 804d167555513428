//! The pages of a running pilot-discovery.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use http::Method;
use net::http::{ExchangeError, call};
use serde_json::Value;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

/// Exit status if the server cannot be reached.
pub(crate) const UNREACHABLE: u8 = 3;
/// The dump of a proxy in a large mesh takes seconds.
const LIMIT: Duration = Duration::from_secs(30);

/// The address of a running pilot-discovery.
#[derive(Args, Clone)]
pub(crate) struct ControlPlaneOptions {
    /// Monitoring address of a running pilot-discovery, HOST:PORT
    #[arg(long, default_value = "127.0.0.1:15014")]
    pub(crate) server: String,
}

impl ControlPlaneOptions {
    pub(crate) fn at(server: &str) -> ControlPlaneOptions {
        ControlPlaneOptions { server: server.to_owned() }
    }

    fn address(&self) -> &str {
        self.server.trim_start_matches("http://").trim_end_matches('/')
    }

    /// The text of a page.
    pub(crate) async fn text(&self, path: &str) -> Result<String> {
        let address = self.address();
        let failed = || format!("could not read {path} of the control plane at {address}");
        let answer = timeout(LIMIT, call(Method::GET, address, path, String::new())).await;
        let body = answer.with_context(failed)?.with_context(failed)?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// A page as JSON.
    pub(crate) async fn page(&self, path: &str) -> Result<Value> {
        let text = self.text(path).await?;
        serde_json::from_str(&text).with_context(|| format!("could not read {path} of {}: not JSON", self.address()))
    }
}

/// Whether an error means that no server answered.
pub(crate) fn is_unreachable(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let exchange = cause.downcast_ref::<ExchangeError>();
        let is_gone = matches!(exchange, Some(ExchangeError::Connect { .. } | ExchangeError::Http(_)));
        is_gone || cause.downcast_ref::<Elapsed>().is_some()
    })
}

/// A text for use in a query.
pub(crate) fn escaped(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}
