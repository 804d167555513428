//! Sends the fetch requests of the newest snapshot (key sets, Secrets) back to the sources that execute them.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::change::SourceId;
use model::fetch_requests::FetchRequests;
use model::snapshot::gateway_api::ConvertedConfig;
use model::snapshot::objects::Objects;
use tokio::sync::watch;

use super::snapshot_writer::SnapshotWriter;

/// Publishes the fetch requests of the snapshot, now and after every change. Nothing is published before these sources
/// have synced, so that the first message has all requests.
pub async fn follow(
    world: SnapshotWriter,
    sources: BTreeSet<SourceId>,
    requests: watch::Sender<Option<FetchRequests>>,
) {
    let mut snapshots = world.snapshots();
    let mut seen: Option<(Arc<Objects>, Arc<ConvertedConfig>)> = None;
    loop {
        let latest = snapshots.borrow_and_update().clone();
        let (objects, converted) = (&latest.snapshot.objects, &latest.snapshot.converted);
        let is_same = seen.as_ref().is_some_and(|(o, c)| Arc::ptr_eq(o, objects) && Arc::ptr_eq(c, converted));
        if latest.is_synced(&sources) && !is_same {
            let newest = Some(latest.snapshot.fetch_requests());
            requests.send_if_modified(|published| {
                let is_new = *published != newest;
                if is_new {
                    *published = newest;
                }
                is_new
            });
            seen = Some((objects.clone(), converted.clone()));
        }
        // Not held while waiting: a snapshot with other problems only replaces it without a notice.
        drop(latest);
        if snapshots.changed().await.is_err() || requests.is_closed() {
            return;
        }
    }
}
