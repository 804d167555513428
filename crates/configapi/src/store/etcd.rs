//! Storage in etcd, for several processes. A key is `/PREFIX/v1/resource/namespace/name`, the value is the stored text,
//! and etcd's revisions are ours. One task follows a watch and fills the cache; writes are transactions on the revision of
//! their key and return when the cache has them.

use std::sync::Arc;
use std::time::Duration;

use ::etcd::{
    EtcdClient, EtcdError, EtcdOptions, EtcdWatch, KeyRange, KeyRevision, KeyValue, KeyWrite, SwapOutcome, WatchUpdate,
};
use serde::de::IgnoredAny;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{error, info, warn};

use super::cache::{HistoryLimits, Objects, RevisionError, WatchCache};
use super::{
    BoxFuture, ObjectKey, Revision, StaleError, Storage, StoreError, StoreEvent, StoredObject, TEXT_START, Write,
    WriteResult,
};

/// The prefix of addresses that have none.
const PREFIX: &str = "pilotage";
/// The format of keys and values.
const FORMAT: &str = "v1";
/// Keys of one page when everything is read.
const PAGE: i64 = 500;
/// How long etcd may be away at the start.
const OPEN: Duration = Duration::from_secs(30);
/// Pause before a failed watch or read is tried again.
const RETRY: Duration = Duration::from_millis(200);
/// How long a read waits for the newest revision.
const REFRESH: Duration = Duration::from_secs(1);
/// How long a request waits for a revision that another process returned.
const REACH: Duration = Duration::from_secs(3);
/// How long a done write waits for the cache.
const SHOWN: Duration = Duration::from_secs(5);

/// Why the storage could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("could not read the configuration storage in etcd ({members}): {cause}")]
pub struct OpenEtcdError {
    members: String,
    cause: EtcdError,
}

/// A storage in etcd.
pub struct EtcdStorage {
    shared: Arc<EtcdState>,
    /// Ends the watch.
    _stop: DropGuard,
}

struct EtcdState {
    client: EtcdClient,
    cache: Arc<WatchCache>,
    /// Start of all keys; ends with a slash.
    prefix: String,
    /// Wakes the watch, which then asks for the newest revision.
    hurry: Notify,
}

impl EtcdStorage {
    /// Reads everything and follows changes from then on. Tries for half a minute if etcd cannot be reached.
    pub async fn open(options: EtcdOptions, limits: HistoryLimits) -> Result<EtcdStorage, OpenEtcdError> {
        let members = options.members.join(",");
        let failed = |cause| OpenEtcdError { members: members.clone(), cause };
        let name = if options.prefix.is_empty() { PREFIX } else { &options.prefix };
        let prefix = format!("/{name}/{FORMAT}/");
        let client = EtcdClient::new(options).map_err(failed)?;
        let end = Instant::now() + OPEN;
        let (objects, revision) = loop {
            match load(&client, &prefix, 0, None).await {
                Ok(loaded) => break loaded,
                Err(EtcdError::Compacted) => {}
                Err(cause @ EtcdError::Refused(_)) => return Err(failed(cause)),
                Err(cause) if Instant::now() >= end => return Err(failed(cause)),
                Err(cause) => warn!(members, error = %cause, "could not read the configuration storage; retrying"),
            }
            sleep(RETRY).await;
        };
        info!(members, prefix, revision, objects = objects.len(), "configuration storage opened");
        let cache = Arc::new(WatchCache::new(objects, revision, Vec::new(), limits));
        let shared = Arc::new(EtcdState { client, cache, prefix, hurry: Notify::new() });
        let stop = CancellationToken::new();
        tokio::spawn(stop.clone().run_until_cancelled_owned(follow(shared.clone())));
        Ok(EtcdStorage { shared, _stop: stop.drop_guard() })
    }
}

impl Storage for EtcdStorage {
    fn write(&self, write: Write) -> BoxFuture<'_, WriteResult> {
        Box::pin(self.shared.write(write))
    }

    fn cache(&self) -> &Arc<WatchCache> {
        &self.shared.cache
    }

    fn refresh(&self) -> BoxFuture<'_, Result<(), StaleError>> {
        Box::pin(self.shared.refresh())
    }

    fn reach(&self, revision: Revision) -> BoxFuture<'_, ()> {
        Box::pin(async move { _ = self.shared.reach(revision, REACH).await })
    }

    fn objects_at<'a>(
        &'a self,
        revision: Revision,
        key: Option<&'a ObjectKey>,
    ) -> BoxFuture<'a, Result<Objects, RevisionError>> {
        Box::pin(self.shared.objects_at(revision, key))
    }
}

impl EtcdState {
    async fn write(&self, write: Write) -> WriteResult {
        let Write { key, expected, text, requires } = write;
        if expected.is_none() && text.is_none() {
            return Err(StoreError::Conflict { key, found: None });
        }
        let path = format!("{}{}", self.prefix, key.to_text());
        let value = text.as_deref().map(str::as_bytes);
        let expected = signed(expected.unwrap_or_default());
        let required = requires.as_ref().map(|(key, revision)| KeyRevision {
            key: format!("{}{}", self.prefix, key.to_text()),
            revision: signed(*revision),
        });
        let (result, revision) = match self.client.swap(&path, expected, value, required.as_ref()).await {
            Ok(SwapOutcome::Done(revision)) => (Ok(unsigned(revision)), unsigned(revision)),
            Ok(SwapOutcome::Conflict { found, revision }) => {
                let found = found.map(|entry| unsigned(entry.mod_revision));
                let error = match requires {
                    // The key itself is as expected.
                    Some((required, _)) if found.unwrap_or_default() == unsigned(expected) => {
                        StoreError::RequiredChanged { key, required }
                    }
                    _ => StoreError::Conflict { key, found },
                };
                (Err(error), unsigned(revision))
            }
            Err(cause) => return Err(failure(key, &cause)),
        };
        // A done write stays done if the watch is behind, and a client that lost a race reads the winner's object.
        self.reach(revision, SHOWN).await;
        result
    }

    /// Waits until the cache has a revision.
    async fn reach(&self, revision: Revision, limit: Duration) -> bool {
        if self.cache.revision() >= revision {
            return true;
        }
        // The write is the last event of the watch, or no key of ours was written.
        self.hurry.notify_one();
        self.cache.reach(revision, limit).await
    }

    async fn refresh(&self) -> Result<(), StaleError> {
        let stale = |cause| StaleError { revision: self.cache.revision(), cause };
        let newest = tokio::time::timeout(REFRESH, self.client.revision()).await;
        let newest = newest.map_err(|_| stale(format!("no response of etcd within {REFRESH:?}")))?;
        let newest = unsigned(newest.map_err(|cause| stale(cause.to_string()))?);
        match self.reach(newest, REFRESH).await {
            true => Ok(()),
            false => Err(stale(format!("revision {newest} has not arrived"))),
        }
    }

    async fn objects_at(&self, revision: Revision, key: Option<&ObjectKey>) -> Result<Objects, RevisionError> {
        let expired = match self.cache.at(revision) {
            Err(expired @ RevisionError::Expired { .. }) => expired,
            known => return known,
        };
        // etcd may know more than this process has seen.
        match load(&self.client, &self.prefix, signed(revision), key).await {
            Ok((objects, _)) => Ok(objects),
            Err(cause) => {
                if cause != EtcdError::Compacted {
                    warn!(revision, error = %cause, "could not read an old revision of the configuration storage");
                }
                Err(expired)
            }
        }
    }
}

fn failure(key: ObjectKey, cause: &EtcdError) -> StoreError {
    let text = cause.to_string();
    match cause {
        EtcdError::Unavailable(_) => StoreError::Unavailable { key, cause: text },
        EtcdError::Unanswered(_) => StoreError::Unconfirmed { key, cause: text },
        EtcdError::TooLarge(_) => StoreError::TooLarge { key, cause: text },
        EtcdError::Refused(_) | EtcdError::Compacted | EtcdError::Unauthenticated(_) => {
            StoreError::Failed { key, cause: text }
        }
    }
}

/// Reads all objects at a revision (0: the newest), or one of them. Returns the revision that was read.
async fn load(
    client: &EtcdClient,
    prefix: &str,
    revision: i64,
    key: Option<&ObjectKey>,
) -> Result<(Objects, Revision), EtcdError> {
    let mut range = match key {
        Some(key) => KeyRange::key(&format!("{prefix}{}", key.to_text())),
        None => KeyRange::prefix(prefix),
    };
    let (mut objects, mut at) = (Objects::new(), revision);
    loop {
        let page = client.range(&range, at, PAGE).await?;
        if at == 0 {
            at = page.revision;
        }
        let last = page.entries.last().map(|entry| entry.key.clone());
        for object in page.entries.into_iter().filter_map(|entry| stored(entry, prefix)) {
            objects.insert(object.key.clone(), Arc::new(object));
        }
        match last {
            Some(mut next) if page.more => {
                next.push(0);
                range.start = next;
            }
            _ => return Ok((objects, unsigned(at))),
        }
    }
}

/// The object of an entry. Entries that were not written by this program are ignored.
fn stored(entry: KeyValue, prefix: &str) -> Option<StoredObject> {
    let name = String::from_utf8_lossy(&entry.key).into_owned();
    let key = name.strip_prefix(prefix).and_then(ObjectKey::from_text);
    let text = String::from_utf8(entry.value).ok().filter(|text| is_object(text));
    match (key, text) {
        (Some(key), Some(text)) => {
            Some(StoredObject { key, revision: unsigned(entry.mod_revision), text: text.into() })
        }
        _ => {
            warn!(
                key = name,
                "ignoring an entry of the configuration storage: it is no object; delete it with etcdctl"
            );
            None
        }
    }
}

fn is_object(text: &str) -> bool {
    text.starts_with(TEXT_START) && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Follows the watch until cancelled. After a failure the next member is used; after a compaction everything is read.
async fn follow(state: Arc<EtcdState>) {
    let mut failed_since = None;
    loop {
        let from = signed(state.cache.revision()) + 1;
        let failure = match state.client.watch(&KeyRange::prefix(&state.prefix), from).await {
            Ok(mut watch) => {
                let failure = follow_one(&state, &mut watch, &mut failed_since).await;
                state.client.after_watch(&watch, &failure);
                failure
            }
            Err(failure) => failure,
        };
        if failure == EtcdError::Compacted && reload(&state).await {
            continue;
        }
        let since = *failed_since.get_or_insert_with(|| {
            warn!(error = %failure, "lost the watch of the configuration storage; serving the last known objects");
            Instant::now()
        });
        // The first retry is at once: most failures concern one member.
        if since.elapsed() > RETRY {
            sleep(RETRY).await;
        }
    }
}

/// Applies the updates of a watch. Returns why it ended.
async fn follow_one(state: &EtcdState, watch: &mut EtcdWatch, failed_since: &mut Option<Instant>) -> EtcdError {
    loop {
        let update = tokio::select! {
            update = watch.next() => update,
            () = state.hurry.notified() => {
                watch.ask_progress();
                continue;
            }
        };
        match update {
            Ok(WatchUpdate::Created(revision)) => {
                if unsigned(revision) < state.cache.revision() {
                    error!(
                        revision,
                        known = state.cache.revision(),
                        "etcd is older than the known objects: was it restored from a backup? reading everything"
                    );
                    return EtcdError::Compacted;
                }
                if let Some(since) = failed_since.take() {
                    info!(after = ?since.elapsed(), "watch of the configuration storage restored");
                }
            }
            Ok(WatchUpdate::Written(writes)) => record(state, writes),
            Ok(WatchUpdate::Progress(revision)) => state.cache.advance(unsigned(revision)),
            Err(failure) => return failure,
        }
    }
}

fn record(state: &EtcdState, writes: Vec<KeyWrite>) {
    let (mut objects, _) = state.cache.current();
    let mut events = Vec::with_capacity(writes.len());
    let mut last = 0;
    for KeyWrite { entry, is_delete } in writes {
        last = unsigned(entry.mod_revision);
        let key = std::str::from_utf8(&entry.key).ok().and_then(|name| name.strip_prefix(&state.prefix));
        let Some(key) = key.and_then(ObjectKey::from_text) else { continue };
        let after = if is_delete { None } else { stored(entry, &state.prefix).map(Arc::new) };
        let before = match &after {
            Some(after) => objects.insert(key, after.clone()),
            None => objects.remove(&key),
        };
        if before.is_some() || after.is_some() {
            events.push(StoreEvent { revision: last, before, after });
        }
    }
    state.cache.record(events);
    state.cache.advance(last);
}

/// Reads everything after events were missed.
async fn reload(state: &EtcdState) -> bool {
    match load(&state.client, &state.prefix, 0, None).await {
        Ok((objects, revision)) => {
            warn!(revision, objects = objects.len(), "read the configuration storage again: its history was compacted");
            state.cache.replace(objects, revision);
            true
        }
        Err(cause) => {
            warn!(error = %cause, "could not read the configuration storage again; retrying");
            false
        }
    }
}

/// Revisions of etcd are positive.
fn unsigned(revision: i64) -> Revision {
    Revision::try_from(revision).unwrap_or_default()
}

fn signed(revision: Revision) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}
