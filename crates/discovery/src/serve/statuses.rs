//! Statuses on their way to what writes them back.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::change::SourceId;
use model::snapshot::lower::Lowered;
use tokio::sync::watch;

use super::world::World;

/// Tells the statuses, now and after every change, once these sources are in sync.
pub(crate) async fn follow(world: World, sources: BTreeSet<SourceId>, tell: watch::Sender<Arc<Lowered>>) {
    let mut epochs = world.epochs();
    loop {
        let epoch = epochs.borrow_and_update().clone();
        if epoch.is_synced(&sources) {
            tell.send_if_modified(|told| {
                let is_new = !Arc::ptr_eq(told, &epoch.snapshot.lowered);
                if is_new {
                    *told = epoch.snapshot.lowered.clone();
                }
                is_new
            });
        }
        if epochs.changed().await.is_err() || tell.is_closed() {
            return;
        }
    }
}
