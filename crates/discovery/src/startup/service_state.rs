//! Reports to systemd when this server is ready, which sources it waits for until then, and that it is alive.

use std::sync::Arc;
use std::time::Duration;

use cli::systemd::ServiceManager;
use tokio::time::sleep;

use crate::serve::session::ControlPlane;

/// How often readiness is checked.
const PERIOD: Duration = Duration::from_millis(100);

/// Never returns. Signs of life end with the snapshot writer: without it the server answers, but with old content.
pub(super) async fn report(manager: Arc<ServiceManager>, pilot: Arc<ControlPlane>) {
    let mut shown = Vec::new();
    loop {
        let missing = pilot.missing_sources();
        if missing.is_empty() {
            break;
        }
        if missing != shown {
            let names: Vec<&str> = missing.iter().map(|source| &*source.0).collect();
            manager.status(&format!("waiting for {} to sync", names.join(", ")));
            shown = missing;
        }
        if manager.heartbeat().is_some() {
            manager.alive();
        }
        sleep(PERIOD).await;
    }
    manager.ready();
    let Some(interval) = manager.heartbeat() else { return };
    while !pilot.world().changes().is_closed() {
        manager.alive();
        sleep(interval).await;
    }
}
