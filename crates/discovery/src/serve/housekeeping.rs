//! Frees what was computed for clients that disconnected and for earlier snapshots.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::serve::session::ControlPlane;

/// Time between the disconnect of a client, or a new snapshot, and the cleanup. A client that reconnects meanwhile
/// finds everything still cached.
const REST: Duration = Duration::from_secs(10);
/// The cleanup is not put off any longer while further clients disconnect.
const AT_MOST: Duration = Duration::from_secs(20);

/// Shares a control plane with a task that cleans up until the snapshot writer ends.
pub(crate) fn started(pilot: ControlPlane) -> Arc<ControlPlane> {
    let pilot = Arc::new(pilot);
    tokio::spawn(follow(pilot.clone()));
    pilot
}

async fn follow(pilot: Arc<ControlPlane>) {
    let mut snapshots = pilot.world().snapshots();
    loop {
        tokio::select! {
            changed = snapshots.changed() => if changed.is_err() { return },
            () = pilot.clients().left() => {}
        }
        let latest = Instant::now() + AT_MOST;
        while timeout_at(latest.min(Instant::now() + REST), pilot.clients().left()).await.is_ok() {}
        pilot.free_unused();
    }
}
