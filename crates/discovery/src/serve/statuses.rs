//! Sends the statuses of the newest snapshot to the source that writes them.

use std::sync::Arc;
use std::time::Duration;

use model::snapshot::gateway_api::ConvertedConfig;
use sources::source_set::SourceSet;
use tokio::sync::watch;
use tokio::time::timeout;

use super::snapshot_writer::SnapshotWriter;

/// Interval of checks while a source has not synced: an optional source may be given up without a change.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Publishes the statuses, now and after every change, once all sources have synced or were given up.
pub(crate) async fn follow(world: SnapshotWriter, sources: SourceSet, statuses: watch::Sender<Arc<ConvertedConfig>>) {
    let mut snapshots = world.snapshots();
    loop {
        let latest = snapshots.borrow_and_update().clone();
        let is_complete = sources.unsynced(&latest.snapshot.synced).is_empty();
        if is_complete {
            statuses.send_if_modified(|published| {
                let is_new = !Arc::ptr_eq(published, &latest.snapshot.converted);
                if is_new {
                    *published = latest.snapshot.converted.clone();
                }
                is_new
            });
        }
        // Not held while waiting.
        drop(latest);
        let changed = match is_complete {
            true => snapshots.changed().await,
            false => timeout(LOOK_AGAIN, snapshots.changed()).await.unwrap_or(Ok(())),
        };
        if changed.is_err() || statuses.is_closed() {
            return;
        }
    }
}
