//! Drains Envoy: starts draining through the admin port, then waits for connections to end.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use http::Method;
use serde::{Deserialize, Serialize};
use tokio::time::{interval, sleep};
use tracing::{info, warn};

use crate::http_client;

/// Timeout of an admin request. An Envoy that takes longer hangs.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Failed attempts to count connections before waiting ends.
const ERRORS: u32 = 5;

/// How Envoy is drained.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Drain {
    /// Envoy's admin port.
    pub admin: SocketAddr,
    /// Drain inbound listeners only: a sidecar's application may still make calls.
    pub inbound_only: bool,
    /// Time for clients to finish.
    pub time: Duration,
    /// Instead of a fixed time, wait until no connection is left, but at least this long.
    pub until_idle: Option<Duration>,
    /// Ports of static listeners (status, metrics), whose connections do not count.
    pub own_ports: BTreeSet<u16>,
}

impl Drain {
    /// Starts draining Envoy's listeners.
    pub(super) async fn begin(&self, after: AfterDrain) {
        let mut query = "graceful".to_owned();
        if self.inbound_only {
            query.insert_str(0, "inboundonly&");
        }
        if after == AfterDrain::KeepRunning {
            query.push_str("&skip_exit");
        }
        if let Err(error) = self.admin_request(Method::POST, &format!("/drain_listeners?{query}")).await {
            warn!("could not start draining Envoy: {error:#}");
        }
    }

    /// Returns when the drain time is over or no connection is left.
    pub(super) async fn wait(&self) {
        let Some(minimum) = self.until_idle else { return sleep(self.time).await };
        sleep(minimum).await;
        let mut tick = interval(Duration::from_secs(1));
        let mut errors = 0;
        while errors < ERRORS {
            tick.tick().await;
            match self.admin_request(Method::GET, "/stats?usedonly&filter=downstream_cx_active$").await {
                Ok(stats) => match self.active(&stats) {
                    None | Some(0) => return,
                    Some(left) => info!(connections = left, "waiting for connections to close"),
                },
                Err(error) => {
                    errors += 1;
                    warn!("could not count Envoy's connections: {error:#}");
                }
            }
        }
    }

    async fn admin_request(&self, method: Method, path: &str) -> Result<String> {
        let body = http_client::send(TIMEOUT, method, &self.admin.to_string(), path, String::new()).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Number of client connections; `None` if Envoy reports no stats.
    fn active(&self, stats: &str) -> Option<u64> {
        let count = |line: &str| {
            let (name, value) = line.rsplit_once(':')?;
            let listener = name.strip_prefix("listener.")?.strip_suffix(".downstream_cx_active")?;
            self.is_for_clients(listener).then(|| value.trim().parse::<u64>().ok())?
        };
        (!stats.trim().is_empty()).then(|| stats.lines().filter_map(count).sum())
    }

    /// True for client listeners: not admin, per-worker, internal or static ones.
    fn is_for_clients(&self, listener: &str) -> bool {
        let own = listener.rsplit_once('_').and_then(|(_, port)| port.parse().ok());
        !listener.starts_with("admin")
            && !listener.starts_with("envoy_internal_")
            && !listener.contains("worker_")
            && !own.is_some_and(|port: u16| self.own_ports.contains(&port))
    }
}

/// What Envoy does when draining is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterDrain {
    KeepRunning,
    Exit,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Drain;

    #[test]
    fn only_client_connections_count() {
        let drain = Drain {
            admin: ([127, 0, 0, 1], 15000).into(),
            inbound_only: true,
            time: Duration::ZERO,
            until_idle: None,
            own_ports: [15021, 15090].into(),
        };
        let stats = "http.10.0.0.1_80.downstream_cx_active: 7\n\
                     listener.0.0.0.0_15006.downstream_cx_active: 2\n\
                     listener.0.0.0.0_15006.worker_0.downstream_cx_active: 2\n\
                     listener.0.0.0.0_15090.downstream_cx_active: 1\n\
                     listener.admin.downstream_cx_active: 1\n\
                     listener.admin.main_thread.downstream_cx_active: 1\n\
                     listener.envoy_internal_x.downstream_cx_active: 4\n\
                     listener.[__]_8080.downstream_cx_active: 3\n";
        assert_eq!(drain.active(stats), Some(5));
        assert_eq!(drain.active("\n"), None);
    }
}
