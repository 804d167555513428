//! Readiness of Envoy: it is live, its workers have started, and it accepted clusters and listeners from the control
//! plane. Checked on every probe, so that a replaced or hanging Envoy is not ready. Only the fact that it received
//! configuration is cached, while Envoy stays live.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::fetch;

/// Upstream's timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum response size; responses are a few lines.
const LIMIT: usize = 1 << 20;

const STATS: &str = "/stats?usedonly&filter=%5E(server%5C.state%7Clistener_manager%5C.workers_started%7C\
                     (cluster_manager%5C.cds%7Clistener_manager%5C.lds)%5C.update_(success%7Crejected))%24";

/// Connections to the control plane that failed because of the names in its certificate; printed only if above 0.
const WRONG_NAMES: &str = "/stats?usedonly&filter=%5Ecluster%5C.xds-grpc.*%5C.ssl%5C.fail_verify_san%24";

/// Secrets that Envoy has asked for and not received.
const MISSING_SECRETS: &str = "/config_dump?resource=dynamic_warming_secrets";

/// Checks Envoy through its admin port.
#[derive(Debug)]
pub(super) struct ReadinessCheck {
    admin: SocketAddr,
    /// Names of which the control plane's certificate must have one, if Envoy connects to it itself.
    names: Vec<String>,
    configured: AtomicBool,
}

impl ReadinessCheck {
    pub(super) fn new(admin: SocketAddr, names: Vec<String>) -> ReadinessCheck {
        ReadinessCheck { admin, names, configured: AtomicBool::new(false) }
    }

    /// The error names the missing condition.
    pub(super) async fn check(&self) -> Result<()> {
        let checked = self.query_envoy().await;
        self.configured.store(checked.is_ok(), Ordering::Relaxed);
        checked
    }

    async fn query_envoy(&self) -> Result<()> {
        let state = match fetch::get(self.admin, "/ready", TIMEOUT, LIMIT).await {
            Err(_) if self.rejects_control_plane().await => {
                bail!(
                    "Envoy is not live: the control plane's certificate has none of the required names {}",
                    self.names.join(", ")
                )
            }
            state => state.context("Envoy is not live")?,
        };
        if !state.starts_with("LIVE") {
            bail!("Envoy is not live: its state is {}", state.trim());
        }
        if self.configured.load(Ordering::Relaxed) {
            return Ok(());
        }
        evaluate(&fetch::get(self.admin, STATS, TIMEOUT, LIMIT).await?)
    }

    /// Names of the secrets that Envoy waits for.
    pub(super) async fn missing_secrets(&self) -> Vec<String> {
        let page = fetch::get(self.admin, MISSING_SECRETS, TIMEOUT, LIMIT).await.unwrap_or_default();
        secret_names(&page)
    }

    /// True if Envoy, which connects to the control plane itself, rejected the names in its certificate.
    async fn rejects_control_plane(&self) -> bool {
        let stats = fetch::get(self.admin, WRONG_NAMES, TIMEOUT, LIMIT).await.unwrap_or_default();
        !stats.trim().is_empty()
    }
}

/// The names in a dump of secrets, sorted.
fn secret_names(page: &str) -> Vec<String> {
    let page: Value = serde_json::from_str(page).unwrap_or_default();
    let configs = page["configs"].as_array().map_or(&[][..], Vec::as_slice);
    let mut names: Vec<String> =
        configs.iter().filter_map(|config| Some(config["name"].as_str()?.to_owned())).collect();
    names.sort();
    names.dedup();
    names
}

/// Evaluates Envoy's stats.
fn evaluate(stats: &str) -> Result<()> {
    let value = |name: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    let count = |kind: &str| [format!("{kind}.update_success"), format!("{kind}.update_rejected")].map(|n| value(&n));
    let [clusters, clusters_rejected] = count("cluster_manager.cds");
    let [listeners, listeners_rejected] = count("listener_manager.lds");
    let counts = format!(
        "clusters: {clusters} accepted, {clusters_rejected} rejected; \
         listeners: {listeners} accepted, {listeners_rejected} rejected"
    );
    match (clusters > 0, listeners > 0) {
        (true, true) => {}
        (false, false) => bail!("no configuration received from the control plane ({counts})"),
        _ if clusters_rejected + listeners_rejected > 0 => bail!("Envoy rejected its configuration ({counts})"),
        _ => bail!("configuration received only in part ({counts})"),
    }
    match (value("server.state"), value("listener_manager.workers_started")) {
        (0, 1) => Ok(()),
        (0, _) => bail!("Envoy's workers have not started"),
        (state, _) => bail!("Envoy is not live: server.state is {state}"),
    }
}

#[cfg(test)]
mod tests {
    use super::evaluate;

    fn stats(clusters: u64, listeners: u64, refused: u64, state: u64, workers: u64) -> String {
        format!(
            "cluster_manager.cds.update_rejected: {refused}\ncluster_manager.cds.update_success: {clusters}\n\
             listener_manager.lds.update_rejected: 0\nlistener_manager.lds.update_success: {listeners}\n\
             listener_manager.workers_started: {workers}\nserver.state: {state}\n"
        )
    }

    #[test]
    fn errors_name_the_missing_condition() {
        let result = |stats: String| evaluate(&stats).map_or_else(|error| error.to_string(), |()| "ready".to_owned());
        assert_eq!(result(stats(1, 1, 0, 0, 1)), "ready");
        assert!(result(stats(0, 0, 0, 2, 0)).contains("no configuration"));
        assert!(result(stats(0, 1, 3, 2, 0)).contains("rejected its"));
        assert!(result(stats(1, 0, 0, 2, 0)).contains("in part"));
        assert!(result(stats(1, 1, 0, 0, 0)).contains("workers"));
        assert!(result(stats(1, 1, 0, 3, 1)).contains("server.state is 3"));
        assert!(result(String::new()).contains("no configuration"));
    }
}
