//! Sends the mesh settings back to the sources that use them.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::change::SourceId;
use model::settings::Settings;
use tokio::sync::watch;

use super::snapshot_writer::SnapshotWriter;

/// Publishes the settings, now and after every change, once these sources have synced.
pub(crate) async fn follow(
    world: SnapshotWriter,
    sources: BTreeSet<SourceId>,
    changes: watch::Sender<Option<Settings>>,
) {
    let mut snapshots = world.snapshots();
    let mut seen: Option<Arc<Settings>> = None;
    loop {
        let latest = snapshots.borrow_and_update().clone();
        let is_same = seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &latest.snapshot.settings));
        if latest.is_synced(&sources) && !is_same {
            changes.send_if_modified(|published| {
                let is_new = published.as_ref() != Some(&*latest.snapshot.settings);
                if is_new {
                    *published = Some(Settings::clone(&latest.snapshot.settings));
                }
                is_new
            });
            seen = Some(latest.snapshot.settings.clone());
        }
        // Not held while waiting.
        drop(latest);
        if snapshots.changed().await.is_err() || changes.is_closed() {
            return;
        }
    }
}
