//! The settings of the mesh on their way back to sources that place what they see by them.

use std::collections::BTreeSet;

use model::change::SourceId;
use model::settings::Settings;
use tokio::sync::watch;

use super::snapshot_writer::SnapshotWriter;

/// Tells the settings, now and after every change, once the sources of settings are in sync.
pub(crate) async fn follow(world: SnapshotWriter, sources: BTreeSet<SourceId>, tell: watch::Sender<Option<Settings>>) {
    let mut epochs = world.epochs();
    loop {
        let epoch = epochs.borrow_and_update().clone();
        if epoch.is_synced(&sources) {
            tell.send_if_modified(|told| {
                let is_new = told.as_ref() != Some(&*epoch.snapshot.settings);
                if is_new {
                    *told = Some(Settings::clone(&epoch.snapshot.settings));
                }
                is_new
            });
        }
        if epochs.changed().await.is_err() || tell.is_closed() {
            return;
        }
    }
}
