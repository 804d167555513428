//! The debug pages of a running pilot-discovery.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use http::Method;
use serde_json::Value;

/// Exit status if the server cannot be reached.
pub(crate) const UNREACHABLE: u8 = 3;
const LIMIT: Duration = Duration::from_secs(10);

/// The address of a running pilot-discovery.
#[derive(Args, Clone)]
pub(crate) struct ControlPlaneOptions {
    /// Address of --httpAddr or --monitoringAddr of a running pilot-discovery
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub(crate) server: String,
}

impl ControlPlaneOptions {
    pub(crate) fn at(server: &str) -> ControlPlaneOptions {
        ControlPlaneOptions { server: server.to_owned() }
    }

    /// A page as JSON.
    pub(crate) async fn page(&self, path: &str) -> Result<Value> {
        let address = self.server.trim_start_matches("http://").trim_end_matches('/');
        let answer = tokio::time::timeout(LIMIT, net::http::call(Method::GET, address, path, String::new()));
        let unreachable = || format!("could not read {path} of the control plane at {address}");
        let body = answer.await.with_context(unreachable)?.with_context(unreachable)?;
        serde_json::from_slice(&body).with_context(|| format!("could not read {path} of {address}: not JSON"))
    }
}
