//! Is Envoy ready? It must be live with its workers started, and must have accepted clusters and listeners
//! from the control plane. Asked on every probe, so that an Envoy that was replaced or hangs does not pass
//! for ready; only that configuration came is remembered, as long as the same Envoy stays live.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::fetch;

/// Upstream's limit for one question.
const TIMEOUT: Duration = Duration::from_secs(3);

/// These answers are a few lines.
const LIMIT: usize = 1 << 20;

const STATS: &str = "/stats?usedonly&filter=%5E(server%5C.state%7Clistener_manager%5C.workers_started%7C\
                     (cluster_manager%5C.cds%7Clistener_manager%5C.lds)%5C.update_(success%7Crejected))%24";

/// Asks one Envoy's admin port.
#[derive(Debug)]
pub(super) struct ReadinessCheck {
    admin: SocketAddr,
    configured: AtomicBool,
}

impl ReadinessCheck {
    pub(super) fn new(admin: SocketAddr) -> ReadinessCheck {
        ReadinessCheck { admin, configured: AtomicBool::new(false) }
    }

    /// The error says what is missing.
    pub(super) async fn check(&self) -> Result<()> {
        let checked = self.query_envoy().await;
        self.configured.store(checked.is_ok(), Ordering::Relaxed);
        checked
    }

    async fn query_envoy(&self) -> Result<()> {
        let state = fetch::get(self.admin, "/ready", TIMEOUT, LIMIT).await.context("Envoy is not live")?;
        if !state.starts_with("LIVE") {
            bail!("Envoy is not live but {}", state.trim());
        }
        if self.configured.load(Ordering::Relaxed) {
            return Ok(());
        }
        judge(&fetch::get(self.admin, STATS, TIMEOUT, LIMIT).await?)
    }
}

/// What Envoy's statistics say.
fn judge(stats: &str) -> Result<()> {
    let value = |name: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    let count = |kind: &str| [format!("{kind}.update_success"), format!("{kind}.update_rejected")].map(|n| value(&n));
    let [clusters, clusters_rejected] = count("cluster_manager.cds");
    let [listeners, listeners_rejected] = count("listener_manager.lds");
    let counts = format!(
        "clusters: {clusters} accepted, {clusters_rejected} refused; \
         listeners: {listeners} accepted, {listeners_rejected} refused"
    );
    match (clusters > 0, listeners > 0) {
        (true, true) => {}
        (false, false) => bail!("no configuration came from the control plane ({counts})"),
        _ if clusters_rejected + listeners_rejected > 0 => bail!("Envoy refused its configuration ({counts})"),
        _ => bail!("configuration came in part ({counts})"),
    }
    match (value("server.state"), value("listener_manager.workers_started")) {
        (0, 1) => Ok(()),
        (0, _) => bail!("Envoy's workers have not started"),
        (state, _) => bail!("Envoy is not live but in state {state}"),
    }
}

#[cfg(test)]
mod tests {
    use super::judge;

    fn stats(clusters: u64, listeners: u64, refused: u64, state: u64, workers: u64) -> String {
        format!(
            "cluster_manager.cds.update_rejected: {refused}\ncluster_manager.cds.update_success: {clusters}\n\
             listener_manager.lds.update_rejected: 0\nlistener_manager.lds.update_success: {listeners}\n\
             listener_manager.workers_started: {workers}\nserver.state: {state}\n"
        )
    }

    #[test]
    fn each_missing_piece_is_named() {
        let said = |stats: String| judge(&stats).map_or_else(|error| error.to_string(), |()| "ready".to_owned());
        assert_eq!(said(stats(1, 1, 0, 0, 1)), "ready");
        assert!(said(stats(0, 0, 0, 2, 0)).contains("no configuration"));
        assert!(said(stats(0, 1, 3, 2, 0)).contains("refused its"));
        assert!(said(stats(1, 0, 0, 2, 0)).contains("in part"));
        assert!(said(stats(1, 1, 0, 0, 0)).contains("workers"));
        assert!(said(stats(1, 1, 0, 3, 1)).contains("state 3"));
        assert!(said(String::new()).contains("no configuration"));
    }
}
