//! Storage in one file, with redb. One thread writes: all waiting writes go into one transaction, which is synced to the
//! disk before any of them is answered. Next to the objects the file has the replaced versions of the last revisions, so
//! watches and reads of old versions survive a restart.
//!
//! Commits have two phases (`begin`): data and the new root are synced before the file names that root. With one phase, redb
//! cannot distinguish a damaged last commit from an incomplete one, and goes back to the commit before it without a word.

use std::fs::{self, File};
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use redb::{
    Builder, Database, ReadTransaction, ReadableDatabase, ReadableTable, StorageBackend, Table, TableDefinition,
    WriteTransaction,
};
use tokio::sync::{mpsc, oneshot};
use tracing::{error, info, warn};

use super::cache::{HistoryLimits, Objects, WatchCache};
use super::verify;
use super::{BoxFuture, ObjectKey, Revision, Storage, StoreError, StoreEvent, StoredObject, Write, WriteResult};

/// Revision and text by key.
const OBJECTS: TableDefinition<'_, &str, (u64, &str)> = TableDefinition::new("objects");
/// By revision: the key that was written, and the replaced revision (0 for none) and text.
const HISTORY: TableDefinition<'_, u64, (&str, u64, &str)> = TableDefinition::new("history");
/// Numbers by name.
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
const REVISION: &str = "revision";
const FORMAT: &str = "format";
/// The format of the tables above.
const CURRENT_FORMAT: u64 = 1;
/// The revision of an empty storage. 0 has a special meaning in requests.
const FIRST_REVISION: Revision = 1;
/// Writes that may wait.
const QUEUE: usize = 1024;
/// The most writes in one transaction.
const MAX_BATCH: usize = 256;

/// Why the file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("could not open the configuration storage {}: {cause}{}", path.display(), way_out(cause))]
    File { path: PathBuf, cause: Box<redb::Error> },
    #[error("could not open the configuration storage {}: it is damaged{RESTORE}", path.display())]
    Damaged { path: PathBuf },
    #[error("could not read the configuration storage {}: format {found} is not known, expected {CURRENT_FORMAT}", path.display())]
    Format { path: PathBuf, found: u64 },
    #[error("could not start the thread of the configuration storage: {0}")]
    Thread(#[from] std::io::Error),
}

/// The way out of a damaged file.
const RESTORE: &str = "; the file is not replaced: restore it from a copy, or move it away to start with an empty storage \
                       and apply an export";

/// What the user can do about a file that cannot be opened.
fn way_out(cause: &redb::Error) -> &'static str {
    match cause {
        redb::Error::DatabaseAlreadyOpen => "; another process uses it, stop that one or give another file",
        redb::Error::Corrupted(_) | redb::Error::UpgradeRequired(_) => RESTORE,
        // A damaged page may refer to one behind the end of the file.
        redb::Error::Io(error)
            if [io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof].contains(&error.kind()) =>
        {
            RESTORE
        }
        _ => "",
    }
}

/// A storage in one file.
pub struct EmbeddedStorage {
    cache: Arc<WatchCache>,
    /// `None` while it is dropped.
    writes: Option<mpsc::Sender<PendingWrite>>,
    writer: Option<JoinHandle<()>>,
}

impl Drop for EmbeddedStorage {
    /// Waits until the file is closed.
    fn drop(&mut self) {
        self.writes = None;
        if let Some(writer) = self.writer.take() {
            // A panic of the thread was reported when it happened.
            let _ = writer.join();
        }
    }
}

struct PendingWrite {
    write: Write,
    reply: oneshot::Sender<WriteResult>,
}

impl EmbeddedStorage {
    /// Opens the file, or makes it. No other process may have it open.
    pub fn open(path: &Path, limits: HistoryLimits) -> Result<EmbeddedStorage, OpenError> {
        // redb panics on some kinds of damage.
        let read = panic::catch_unwind(AssertUnwindSafe(|| read_file(path, limits)));
        let (database, cache) = read.unwrap_or_else(|_| Err(OpenError::Damaged { path: path.to_owned() }))?;
        let again = path.to_owned();
        EmbeddedStorage::of(path, database, cache, Box::new(move || open_again(&again)))
    }

    /// Opens a storage on another medium than a file, such as the disk of a test. What it has is not verified.
    pub fn on(medium: impl StorageBackend + Clone, limits: HistoryLimits) -> Result<EmbeddedStorage, OpenError> {
        let path = Path::new("medium");
        let open = move || -> Result<Database, redb::Error> { Ok(Builder::new().create_with_backend(medium.clone())?) };
        let failed = |cause: redb::Error| OpenError::File { path: path.to_owned(), cause: Box::new(cause) };
        let (database, cache) = read_database(path, open().map_err(failed)?, limits)?;
        EmbeddedStorage::of(path, database, cache, Box::new(open))
    }

    /// Starts the writer of an open database.
    fn of(path: &Path, database: Database, cache: WatchCache, open: OpenAgain) -> Result<EmbeddedStorage, OpenError> {
        let cache = Arc::new(cache);
        info!(path = %path.display(), revision = cache.revision(), "configuration storage opened");
        let (writes, pending) = mpsc::channel(QUEUE);
        let writer = Writer {
            path: path.to_owned(),
            database: Some(database),
            open,
            cache: cache.clone(),
            oldest_row: FIRST_REVISION,
        };
        let name = "config-storage".to_owned();
        let writer = thread::Builder::new().name(name).spawn(move || writer.run(pending))?;
        Ok(EmbeddedStorage { cache, writes: Some(writes), writer: Some(writer) })
    }
}

impl Storage for EmbeddedStorage {
    fn write(&self, write: Write) -> BoxFuture<'_, WriteResult> {
        Box::pin(async move {
            let key = write.key.clone();
            let (reply, result) = oneshot::channel();
            let Some(writes) = &self.writes else { return Err(StoreError::Closed(key)) };
            if writes.send(PendingWrite { write, reply }).await.is_err() {
                return Err(StoreError::Closed(key));
            }
            result.await.unwrap_or(Err(StoreError::Closed(key)))
        })
    }

    fn cache(&self) -> &Arc<WatchCache> {
        &self.cache
    }
}

/// Opens the file, verifies it, and reads everything.
fn read_file(path: &Path, limits: HistoryLimits) -> Result<(Database, WatchCache), OpenError> {
    let failed = |cause: redb::Error| OpenError::File { path: path.to_owned(), cause: Box::new(cause) };
    // Verifies the checksums of all pages: a damaged text must not be taken for an object, nor an older commit for the
    // last one.
    if !verify::is_undamaged(path).map_err(failed)? {
        return Err(OpenError::Damaged { path: path.to_owned() });
    }
    if !path.exists() {
        create(path).map_err(failed)?;
    }
    read_database(path, Database::create(path).map_err(|cause| failed(cause.into()))?, limits)
}

/// Opens the file after a failed write. Not `create`: a file that was removed must not become an empty one.
fn open_again(path: &Path) -> Result<Database, redb::Error> {
    let damaged = || redb::Error::Corrupted("the file is damaged".to_owned());
    // redb panics on some kinds of damage.
    let opened = panic::catch_unwind(|| match verify::is_undamaged(path)? {
        true => Ok(Database::open(path)?),
        false => Err(damaged()),
    });
    opened.unwrap_or_else(|_| Err(damaged()))
}

/// Makes a file, unless another process does at the same time. It gets its name when it is complete: a power loss
/// meanwhile leaves none, rather than one that looks damaged, and one afterwards does not lose it.
fn create(path: &Path) -> Result<(), redb::Error> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".new-{:x}", fastrand::u64(..)));
    let unnamed = PathBuf::from(name);
    prepare(&Database::create(&unnamed)?)?;
    // Unlike a rename, a link never replaces the file of another process.
    let linked = fs::hard_link(&unnamed, path);
    fs::remove_file(&unnamed)?;
    match linked {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        // A file system without links: the file is made in place.
        Err(_) => drop(Database::create(path)?),
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(File::open(folder)?.sync_all()?)
}

/// Reads everything of an open database.
fn read_database(path: &Path, database: Database, limits: HistoryLimits) -> Result<(Database, WatchCache), OpenError> {
    let failed = |cause: redb::Error| OpenError::File { path: path.to_owned(), cause: Box::new(cause) };
    let format = prepare(&database).map_err(failed)?;
    if format != CURRENT_FORMAT {
        return Err(OpenError::Format { path: path.to_owned(), found: format });
    }
    let cache = load(&database, limits).map_err(failed)?;
    Ok((database, cache))
}

/// Makes the tables of a new file. Returns the format.
fn prepare(database: &Database) -> Result<u64, redb::Error> {
    let transaction = begin(database)?;
    let format = {
        transaction.open_table(OBJECTS)?;
        transaction.open_table(HISTORY)?;
        let mut numbers = transaction.open_table(NUMBERS)?;
        let known = numbers.get(FORMAT)?.map(|value| value.value());
        if known.is_none() {
            numbers.insert(FORMAT, CURRENT_FORMAT)?;
            numbers.insert(REVISION, FIRST_REVISION)?;
        }
        known.unwrap_or(CURRENT_FORMAT)
    };
    transaction.commit()?;
    Ok(format)
}

fn revision_of(transaction: &ReadTransaction) -> Result<Revision, redb::Error> {
    let numbers = transaction.open_table(NUMBERS)?;
    Ok(numbers.get(REVISION)?.map_or(FIRST_REVISION, |value| value.value()))
}

/// Reads everything. The history is read backwards: what a write made is what the next write of the object replaced.
fn load(database: &Database, limits: HistoryLimits) -> Result<WatchCache, redb::Error> {
    let transaction = database.begin_read()?;
    let revision = revision_of(&transaction)?;
    let mut objects = Objects::new();
    for row in transaction.open_table(OBJECTS)?.iter()? {
        let (key, value) = row?;
        let (revision, text) = value.value();
        match ObjectKey::from_text(key.value()) {
            Some(key) => _ = objects.insert(key.clone(), Arc::new(StoredObject { key, revision, text: text.into() })),
            None => warn!(key = key.value(), "ignoring a row of the configuration storage: its key is malformed"),
        }
    }
    let mut then = objects.clone();
    let mut history = Vec::new();
    for row in transaction.open_table(HISTORY)?.iter()?.rev() {
        let (at, value) = row?;
        let (key, replaced, text) = value.value();
        let Some(key) = ObjectKey::from_text(key) else { break };
        let before =
            (replaced != 0).then(|| Arc::new(StoredObject { key: key.clone(), revision: replaced, text: text.into() }));
        let after = match before.clone() {
            Some(before) => then.insert(key, before),
            None => then.remove(&key),
        };
        history.push(StoreEvent { revision: at.value(), before, after });
        if history.len() == limits.events {
            break;
        }
    }
    history.reverse();
    Ok(WatchCache::new(objects, revision, history, limits))
}

/// Opens the database again after a failure.
type OpenAgain = Box<dyn Fn() -> Result<Database, redb::Error> + Send>;

/// The thread that writes.
struct Writer {
    path: PathBuf,
    /// `None` after a failure, until it can be opened again.
    database: Option<Database>,
    open: OpenAgain,
    cache: Arc<WatchCache>,
    /// Rows of the history before this revision are deleted.
    oldest_row: Revision,
}

/// A write of a transaction that has not ended yet.
struct TriedWrite {
    key: ObjectKey,
    reply: oneshot::Sender<WriteResult>,
    outcome: WriteOutcome,
}

enum WriteOutcome {
    /// Done, if the transaction is.
    Done(StoreEvent),
    /// Its condition does not hold.
    Refused(StoreError),
    /// The transaction failed before.
    NotTried,
}

/// Why a transaction failed.
struct FailedTransaction {
    cause: redb::Error,
    /// The commit itself failed: the file may have the transaction or not.
    may_be_stored: bool,
}

impl From<redb::Error> for FailedTransaction {
    fn from(cause: redb::Error) -> FailedTransaction {
        FailedTransaction { cause, may_be_stored: false }
    }
}

impl Writer {
    fn run(mut self, mut pending: mpsc::Receiver<PendingWrite>) {
        while let Some(first) = pending.blocking_recv() {
            let mut batch = vec![first];
            while batch.len() < MAX_BATCH
                && let Ok(next) = pending.try_recv()
            {
                batch.push(next);
            }
            self.commit(batch);
        }
    }

    /// Does all writes in one transaction, and answers them when it has ended.
    fn commit(&mut self, batch: Vec<PendingWrite>) {
        let mut tried = Vec::new();
        if let Err(failed) = self.transact(batch, &mut tried) {
            return self.fail(tried, &failed);
        }
        let events: Vec<StoreEvent> = tried.iter().filter_map(TriedWrite::event).cloned().collect();
        self.oldest_row = self.cache.record(events) + 1;
        for TriedWrite { key, reply, outcome } in tried {
            let result = match outcome {
                WriteOutcome::Done(event) => Ok(event.revision),
                WriteOutcome::Refused(error) => Err(error),
                WriteOutcome::NotTried => Err(StoreError::Closed(key)),
            };
            // A client that is gone does not need the answer.
            let _ = reply.send(result);
        }
    }

    /// Answers the writes of a failed transaction. A failed commit is looked for in the file: the cache and the answers
    /// must not differ from it.
    fn fail(&mut self, tried: Vec<TriedWrite>, failed: &FailedTransaction) {
        error!(path = %self.path.display(), error = %failed.cause, "could not write to the configuration storage");
        // redb refuses writes after a failed one until the file is opened again. First it must be closed.
        self.database = None;
        let stored = if failed.may_be_stored { self.open_again() } else { Ok(Vec::new()) };
        if let Err(error) = &stored {
            error!(
                path = %self.path.display(), %error,
                "could not open the configuration storage again; it is tried at the next write"
            );
        }
        for write in tried {
            let result = match (&stored, write.event()) {
                (Ok(stored), Some(event)) if stored.contains(event) => Ok(event.revision),
                (Err(_), Some(_)) => Err(StoreError::Unconfirmed { key: write.key, cause: failed.cause.to_string() }),
                _ => Err(StoreError::Failed { key: write.key, cause: failed.cause.to_string() }),
            };
            let _ = write.reply.send(result);
        }
    }

    /// Writes a batch. `tried` has the writes, which are answered when the result of the transaction is known.
    fn transact(&mut self, batch: Vec<PendingWrite>, tried: &mut Vec<TriedWrite>) -> Result<(), FailedTransaction> {
        let not_tried =
            |PendingWrite { write, reply }| TriedWrite { key: write.key, reply, outcome: WriteOutcome::NotTried };
        let transaction = match self.begin() {
            Ok(transaction) => transaction,
            Err(cause) => {
                tried.extend(batch.into_iter().map(not_tried));
                return Err(cause.into());
            }
        };
        // `begin` may have recorded writes.
        let mut revision = self.cache.revision();
        let mut batch = batch.into_iter();
        while let Some(PendingWrite { write, reply }) = batch.next() {
            let outcome = match put(&transaction, &write, revision + 1) {
                Ok(Ok(event)) => {
                    revision = event.revision;
                    WriteOutcome::Done(event)
                }
                Ok(Err(refusal)) => WriteOutcome::Refused(refusal),
                Err(cause) => {
                    tried.push(not_tried(PendingWrite { write, reply }));
                    tried.extend(batch.map(not_tried));
                    return Err(cause.into());
                }
            };
            tried.push(TriedWrite { key: write.key, reply, outcome });
        }
        finish(&transaction, revision, self.oldest_row)?;
        transaction.commit().map_err(|cause| FailedTransaction { cause: cause.into(), may_be_stored: true })
    }

    fn begin(&mut self) -> Result<WriteTransaction, redb::Error> {
        if self.database.is_none() {
            self.open_again()?;
        }
        // It is open now.
        self.database.as_ref().map_or(Err(redb::Error::PreviousIo), begin)
    }

    /// Opens the file again, which syncs it, and records what it has that the cache lacks. Returns these events.
    fn open_again(&mut self) -> Result<Vec<StoreEvent>, redb::Error> {
        let database = (self.open)()?;
        let (known, found) = (self.cache.revision(), revision_of(&database.begin_read()?)?);
        if found < known {
            let lost = format!("the file has revision {found}, but revision {known} was acknowledged");
            return Err(redb::Error::Corrupted(lost));
        }
        let mut events = Vec::new();
        if found > known {
            let all = HistoryLimits { events: usize::MAX, bytes: usize::MAX };
            let missed = load(&database, all)?.events_after(known);
            events = missed.map_err(|error| redb::Error::Corrupted(error.to_string()))?.0;
            self.oldest_row = self.cache.record(events.clone()) + 1;
        }
        warn!(path = %self.path.display(), revision = found, "configuration storage opened again after a failed write");
        self.database = Some(database);
        Ok(events)
    }
}

impl TriedWrite {
    fn event(&self) -> Option<&StoreEvent> {
        match &self.outcome {
            WriteOutcome::Done(event) => Some(event),
            WriteOutcome::Refused(_) | WriteOutcome::NotTried => None,
        }
    }
}

fn begin(database: &Database) -> Result<WriteTransaction, redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_two_phase_commit(true);
    Ok(transaction)
}

/// Does one write in the transaction, if its condition holds.
fn put(
    transaction: &WriteTransaction,
    write: &Write,
    revision: Revision,
) -> Result<Result<StoreEvent, StoreError>, redb::Error> {
    let mut objects = transaction.open_table(OBJECTS)?;
    let text = write.key.to_text();
    let before = stored(&objects, &write.key, &text)?;
    let found = before.as_ref().map(|object| object.revision);
    if found != write.expected || (found.is_none() && write.text.is_none()) {
        return Ok(Err(StoreError::Conflict { key: write.key.clone(), found }));
    }
    if let Some((required, revision)) = &write.requires
        && stored(&objects, required, &required.to_text())?.map(|object| object.revision) != Some(*revision)
    {
        let (key, required) = (write.key.clone(), required.clone());
        return Ok(Err(StoreError::RequiredChanged { key, required }));
    }
    match &write.text {
        Some(body) => _ = objects.insert(&*text, (revision, &**body))?,
        None => _ = objects.remove(&*text)?,
    }
    let replaced = before.as_ref().map_or((0, ""), |object| (object.revision, &*object.text));
    transaction.open_table(HISTORY)?.insert(revision, (&*text, replaced.0, replaced.1))?;
    let after = write.text.clone().map(|text| Arc::new(StoredObject { key: write.key.clone(), revision, text }));
    Ok(Ok(StoreEvent { revision, before: before.map(Arc::new), after }))
}

fn stored(
    objects: &Table<'_, &str, (u64, &str)>,
    key: &ObjectKey,
    text: &str,
) -> Result<Option<StoredObject>, redb::Error> {
    let row = objects.get(text)?;
    Ok(row.map(|value| {
        let (revision, text) = value.value();
        StoredObject { key: key.clone(), revision, text: text.into() }
    }))
}

/// Stores the revision and drops the part of the history that the cache dropped.
fn finish(transaction: &WriteTransaction, revision: Revision, oldest_row: Revision) -> Result<(), redb::Error> {
    transaction.open_table(NUMBERS)?.insert(REVISION, revision)?;
    transaction.open_table(HISTORY)?.retain_in(..oldest_row, |_, _| false)?;
    Ok(())
}
