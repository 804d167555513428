//! Frees what was computed for clients that disconnected and for earlier snapshots.

use std::sync::Arc;
use std::time::Duration;

use crate::serve::session::ControlPlane;

/// Time between the disconnect of a client, or a new snapshot, and the cleanup. A client that reconnects meanwhile
/// finds everything still cached.
const REST: Duration = Duration::from_secs(5);

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
        tokio::time::sleep(REST).await;
        pilot.free_unused();
    }
}
