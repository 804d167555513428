//! The single arrow that points from the world back to sources: names of what must be fetched.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::change::SourceId;
use model::snapshot::objects::Policy;
use model::wanted::Wanted;
use tokio::sync::watch;

use super::world::World;

/// Tells what the world wants, now and after every change. Nothing is told before all sources that describe
/// the world are in sync, so that the first message names everything.
pub async fn follow(world: World, sources: BTreeSet<SourceId>, tell: watch::Sender<Option<Wanted>>) {
    let mut epochs = world.epochs();
    let mut seen: Option<Arc<Policy>> = None;
    loop {
        let epoch = epochs.borrow_and_update().clone();
        let is_same = seen.as_ref().is_some_and(|policy| Arc::ptr_eq(policy, &epoch.snapshot.policy));
        if epoch.is_synced(&sources) && !is_same {
            let wanted = Some(epoch.snapshot.wanted());
            tell.send_if_modified(|told| {
                let is_new = *told != wanted;
                if is_new {
                    *told = wanted;
                }
                is_new
            });
            seen = Some(epoch.snapshot.policy.clone());
        }
        if epochs.changed().await.is_err() || tell.is_closed() {
            return;
        }
    }
}
