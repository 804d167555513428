//! Frees what was made for clients that are gone, and for epochs that have passed.

use std::sync::Arc;
use std::time::Duration;

use crate::serve::session::ControlPlane;

/// Time between the leaving of a client, or a change of the world, and the freeing of what it leaves. A client that
/// reconnects meanwhile finds everything in place.
const REST: Duration = Duration::from_secs(5);

/// Shares a control plane with a task that frees for it until the world ends.
pub(crate) fn started(pilot: ControlPlane) -> Arc<ControlPlane> {
    let pilot = Arc::new(pilot);
    tokio::spawn(follow(pilot.clone()));
    pilot
}

async fn follow(pilot: Arc<ControlPlane>) {
    let mut epochs = pilot.world().epochs();
    loop {
        tokio::select! {
            changed = epochs.changed() => if changed.is_err() { return },
            () = pilot.clients().left() => {}
        }
        tokio::time::sleep(REST).await;
        pilot.free_unused();
    }
}
