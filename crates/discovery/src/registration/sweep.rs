//! Deletes entries that a replica left: their workload disconnected, the grace period is over, and the replica that
//! should have deleted them is gone.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::config::{Key, Kind, Meta, Object, timestamp};
use model::registration::{CONNECTED, DISCONNECTED, GROUP};
use sources::kubernetes::trust_objects::WriteResult;
use tracing::{debug, info};

use super::Shared;

/// The replica that wrote the entry deletes it first.
const MARGIN: Duration = Duration::from_secs(3);
/// Deletions of one sweep: the next one continues.
const MOST: usize = 200;

/// Checks every entry once per grace period until cancelled.
pub(super) async fn run(shared: Arc<Shared>) {
    let stop = shared.stop.clone();
    let interval = shared.grace.max(Duration::from_secs(1));
    while stop.run_until_cancelled(tokio::time::sleep(interval)).await.is_some() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let snapshot = (shared.snapshot)();
        let left = snapshot.objects.of(Kind::WorkloadEntry);
        let left: Vec<Key> = left
            .filter(|object| is_left(&object.meta, now, shared.grace + MARGIN))
            .map(Object::key)
            .filter(|key| !shared.workloads.lock().contains_key(key))
            .take(MOST)
            .collect();
        for key in left {
            delete(&shared, &key).await;
        }
    }
}

async fn delete(shared: &Shared, key: &Key) {
    // The snapshot may be old: what is stored now decides, and only that version is deleted.
    let stored = match shared.store.get(key).await {
        Ok(Some(stored)) => stored,
        Ok(None) => return,
        Err(error) => return debug!(entry = %key, %error, "could not read a WorkloadEntry that was left"),
    };
    if stored.annotation(CONNECTED).is_some() || stored.annotation(DISCONNECTED).is_none() {
        return;
    }
    match shared.store.delete(key, &stored.version).await {
        Ok(WriteResult::Written) => {
            shared.metrics.deleted.add(1);
            info!(entry = %key, "deleted a WorkloadEntry that another replica left");
        }
        Ok(WriteResult::Conflict) => {}
        Err(error) => debug!(entry = %key, %error, "could not delete a WorkloadEntry that was left"),
    }
}

/// Whether the workload of a registered entry is gone for this long. `now` is the time since 1970.
fn is_left(meta: &Meta, now: Duration, grace: Duration) -> bool {
    let text = |name: &str| meta.annotations.get(name).map(|value| &**value);
    let (Some(_), None, Some(at)) = (text(GROUP), text(CONNECTED), text(DISCONNECTED)) else { return false };
    let Some((seconds, _)) = timestamp::parse(at) else { return false };
    let since = u64::try_from(seconds).unwrap_or_default();
    now.saturating_sub(Duration::from_secs(since)) > grace
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::config::Meta;
    use model::registration::{CONNECTED, DISCONNECTED, GROUP};

    use super::is_left;

    #[test]
    fn only_entries_disconnected_for_long_are_left() {
        let meta = |annotations: &[(&str, &str)]| Meta {
            annotations: annotations.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            ..Meta::default()
        };
        let left = |meta: &Meta, now| is_left(meta, Duration::from_secs(now), Duration::from_secs(10));
        let (group, gone) = ((GROUP, "cart"), (DISCONNECTED, "1970-01-01T00:01:40.5Z"));
        assert!(left(&meta(&[group, gone]), 200) && !left(&meta(&[group, gone]), 105));
        assert!(!left(&meta(&[gone]), 200), "not registered by a group");
        assert!(!left(&meta(&[group, gone, (CONNECTED, "1970-01-01T00:01:41Z")]), 200));
        assert!(!left(&meta(&[group]), 200) && !left(&meta(&[group, (DISCONNECTED, "?")]), 200));
    }
}
