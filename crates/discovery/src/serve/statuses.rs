//! Statuses on their way to what writes them back.

use std::sync::Arc;
use std::time::Duration;

use model::snapshot::gateway_api::ConvertedConfig;
use sources::source_set::SourceSet;
use tokio::sync::watch;
use tokio::time::timeout;

use super::snapshot_writer::SnapshotWriter;

/// A source that need not be there may be given up between two changes.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Tells the statuses, now and after every change, once no source is waited for any more.
pub(crate) async fn follow(world: SnapshotWriter, sources: SourceSet, tell: watch::Sender<Arc<ConvertedConfig>>) {
    let mut epochs = world.epochs();
    loop {
        let epoch = epochs.borrow_and_update().clone();
        let is_complete = sources.unsynced(&epoch.snapshot.synced).is_empty();
        if is_complete {
            tell.send_if_modified(|told| {
                let is_new = !Arc::ptr_eq(told, &epoch.snapshot.converted);
                if is_new {
                    *told = epoch.snapshot.converted.clone();
                }
                is_new
            });
        }
        let changed = match is_complete {
            true => epochs.changed().await,
            false => timeout(LOOK_AGAIN, epochs.changed()).await.unwrap_or(Ok(())),
        };
        if changed.is_err() || tell.is_closed() {
            return;
        }
    }
}
