//! The pages of a running pilot-discovery, or those of a bundle that was taken from one.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use http::{Method, StatusCode};
use net::http::{ExchangeError, call};
use serde_json::Value;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use crate::bundle_file::BundleFile;

/// Exit status if the server cannot be reached.
pub(crate) const UNREACHABLE: u8 = 3;
/// The dump of a proxy in a large mesh takes seconds.
const LIMIT: Duration = Duration::from_secs(30);
/// A plan of a large mesh takes longer.
const LONG_LIMIT: Duration = Duration::from_secs(300);

/// The address of a running pilot-discovery.
#[derive(Args, Clone)]
pub(crate) struct ControlPlaneOptions {
    /// Monitoring address of a running pilot-discovery, HOST:PORT
    #[arg(long, env = "PILOTCTL_SERVER", default_value = "127.0.0.1:15014")]
    pub(crate) server: String,

    /// File that `pilotctl bundle` wrote, used instead of a server
    #[arg(long)]
    pub(crate) bundle: Option<PathBuf>,
}

impl ControlPlaneOptions {
    pub(crate) fn at(server: &str) -> ControlPlaneOptions {
        ControlPlaneOptions { server: server.to_owned(), bundle: None }
    }

    pub(crate) fn address(&self) -> &str {
        self.server.trim_start_matches("http://").trim_end_matches('/')
    }

    /// The address of a running server; an error with a bundle, which has no such page.
    pub(crate) fn live(&self, page: &str) -> Result<&str> {
        if self.bundle.is_some() {
            bail!("this command needs a running server: a bundle has no page {page}");
        }
        Ok(self.address())
    }

    /// The text of a page.
    pub(crate) async fn text(&self, path: &str) -> Result<String> {
        if let Some(file) = &self.bundle {
            return BundleFile::read(file)?.page(path);
        }
        self.exchange(Method::GET, path, String::new(), LIMIT).await
    }

    /// A page as JSON.
    pub(crate) async fn page(&self, path: &str) -> Result<Value> {
        let text = self.text(path).await?;
        serde_json::from_str(&text).with_context(|| format!("could not read {path} of {}: not JSON", self.address()))
    }

    /// The answer to a request with a body, as JSON.
    pub(crate) async fn post(&self, path: &str, body: String) -> Result<Value> {
        self.live(path.split('?').next().unwrap_or_default())?;
        let text = self.exchange(Method::POST, path, body, LONG_LIMIT).await?;
        serde_json::from_str(&text).with_context(|| format!("could not read {path} of {}: not JSON", self.address()))
    }

    async fn exchange(&self, method: Method, path: &str, body: String, limit: Duration) -> Result<String> {
        let address = self.address();
        let failed = || format!("could not read {path} of the control plane at {address}");
        let answer = timeout(limit, call(method, address, path, body)).await.with_context(failed)?;
        match answer {
            Err(ExchangeError::Status { status: StatusCode::NOT_FOUND, body }) if body.contains("no such page") => {
                bail!(
                    "{}: the server has no such page; it is of another version than this pilotctl ({})",
                    failed(),
                    env!("CARGO_PKG_VERSION")
                )
            }
            Err(ExchangeError::Status { body, status }) => bail!("{}: {}", failed(), reason(&body, status)),
            answer => Ok(String::from_utf8_lossy(&answer.with_context(failed)?).into_owned()),
        }
    }
}

/// The reason in an answer.
fn reason(body: &str, status: StatusCode) -> String {
    let error = serde_json::from_str::<Value>(body).ok().and_then(|body| Some(body["error"].as_str()?.to_owned()));
    error.unwrap_or_else(|| format!("received {status}: {body}"))
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
