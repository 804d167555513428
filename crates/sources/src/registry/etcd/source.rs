//! The source: all keys at one revision, then a watch from the next one. A failed watch is restarted where it ended; the
//! known services are kept.

use std::convert::Infallible;

use etcd::{EtcdClient, EtcdError, KeyRange, KeyValue, WatchUpdate};
use model::change::SourceId;
use tokio::time::sleep_until;
use tracing::debug;

use super::options::EtcdRegistryOptions;
use crate::backoff::Backoff;
use crate::registry::adapter::SourcePlace;
use crate::registry::instances::InstanceTable;
use crate::source::{ChangeSender, Source, SourceError};

/// Keys in one response.
const PAGE: i64 = 500;
/// Longer values are malformed.
const LONGEST_VALUE: usize = 256 * 1024;

/// The source of one etcd cluster.
#[derive(Debug)]
pub struct EtcdRegistry {
    id: SourceId,
    options: EtcdRegistryOptions,
    prefix: String,
    table: InstanceTable,
    /// The revision up to which the table is complete; `None` before the first read.
    revision: Option<i64>,
}

/// Why a watch ended.
enum WatchEnd {
    Etcd(EtcdError),
    Source(SourceError),
    /// The history that the watch needs is gone: everything must be read again.
    Gap,
}

impl From<EtcdError> for WatchEnd {
    fn from(error: EtcdError) -> WatchEnd {
        match error {
            EtcdError::Compacted => WatchEnd::Gap,
            other => WatchEnd::Etcd(other),
        }
    }
}

impl From<SourceError> for WatchEnd {
    fn from(error: SourceError) -> WatchEnd {
        WatchEnd::Source(error)
    }
}

impl EtcdRegistry {
    pub fn new(options: EtcdRegistryOptions, place: SourcePlace) -> EtcdRegistry {
        let SourcePlace { id, cluster, guard } = place;
        let table = InstanceTable::new(options.mapping(cluster), guard);
        let prefix = options.key_prefix();
        EtcdRegistry { id, options, prefix, table, revision: None }
    }

    /// Reads all keys in pages of one revision.
    async fn read_all(&mut self, client: &EtcdClient, sender: &ChangeSender) -> Result<i64, EtcdError> {
        let mut range = KeyRange::prefix(&self.prefix);
        let mut revision = 0;
        self.table.begin_read();
        loop {
            sender.health().count_request();
            let page = client.range(&range, revision, PAGE).await?;
            if revision == 0 {
                revision = page.revision;
            }
            for entry in &page.entries {
                self.put(entry);
            }
            match page.entries.last() {
                Some(last) if page.more => range.start = [last.key.as_slice(), &[0]].concat(),
                _ => break,
            }
        }
        self.table.end_read();
        Ok(revision)
    }

    fn put(&mut self, entry: &KeyValue) {
        let key = String::from_utf8_lossy(&entry.key);
        let value = match entry.value.len() > LONGEST_VALUE {
            true => Err(format!("it has {} bytes, the limit is {LONGEST_VALUE}", entry.value.len())),
            false => self.options.layout.parse(key.strip_prefix(&*self.prefix).unwrap_or(&key), &entry.value),
        };
        self.table.put(&key, value);
    }

    /// Reads everything if needed, then follows a watch until it fails.
    async fn follow(
        &mut self,
        client: &EtcdClient,
        sender: &ChangeSender,
        backoff: &mut Backoff,
    ) -> Result<Infallible, WatchEnd> {
        let mut last = match self.revision {
            Some(revision) => revision,
            None => {
                let revision = self.read_all(client, sender).await?;
                sender.health().mark_reachable();
                self.table.publish(sender).await?;
                self.revision = Some(revision);
                revision
            }
        };
        let mut watch = client.watch(&KeyRange::prefix(&self.prefix), last + 1).await?;
        sender.health().set_watches(1);
        loop {
            let due = self.table.due();
            let update = tokio::select! {
                update = watch.next() => update.inspect_err(|error| client.after_watch(&watch, error))?,
                () = sleep_until(due.unwrap_or_else(tokio::time::Instant::now)), if due.is_some() => {
                    self.table.publish(sender).await?;
                    continue;
                }
            };
            match update {
                // A cluster restored from a backup has lower revisions.
                WatchUpdate::Created(revision) if revision < last => return Err(WatchEnd::Gap),
                WatchUpdate::Created(_) => {
                    backoff.reset();
                    sender.health().mark_reachable();
                }
                WatchUpdate::Progress(revision) => last = last.max(revision),
                WatchUpdate::Written(writes) => {
                    for write in writes {
                        last = last.max(write.entry.mod_revision);
                        match write.is_delete {
                            true => self.table.remove(&String::from_utf8_lossy(&write.entry.key)),
                            false => self.put(&write.entry),
                        }
                    }
                }
            }
            self.revision = Some(last);
        }
    }
}

impl Source for EtcdRegistry {
    fn id(&self) -> SourceId {
        self.id.clone()
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        let failed = |error: &dyn std::fmt::Display| SourceError::Failed(error.to_string());
        let options = self.options.client_options().map_err(|error| failed(&error))?;
        let client = EtcdClient::new(options).map_err(|error| failed(&error))?;
        let mut backoff = Backoff::default();
        loop {
            let Err(end) = self.follow(&client, &sender, &mut backoff).await;
            match end {
                WatchEnd::Source(error) => return Err(error),
                WatchEnd::Gap => {
                    debug!(registry = &*self.id.0, "reading all keys again");
                    self.revision = None;
                }
                WatchEnd::Etcd(error) => {
                    sender.health().mark_unreachable(error.to_string());
                    backoff.wait().await;
                }
            }
        }
    }
}
