//! Power loss: a disk that records what the storage does, and loses, reorders and tears what was not synced. kill -9 does
//! not show this, because the kernel writes what a dead process left. `POWER_LOSS_IMAGES` sets the number of states. The
//! same disk fails at any operation, as a full or broken one does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use configapi::store::cache::{HistoryLimits, WatchCache};
use configapi::store::embedded::EmbeddedStorage;
use configapi::store::{ObjectKey, Revision, Storage, StoreError, StoredObject, Write, WriteResult};
use fastrand::Rng;
use futures_util::future::join_all;
use parking_lot::Mutex;
use redb::StorageBackend;

/// Few events, so that transactions delete rows of the history too.
const LIMITS: HistoryLimits = HistoryLimits { events: 60, bytes: 1 << 20 };
/// What a disk writes at once at least.
const SECTOR: usize = 512;

#[derive(Clone, Debug)]
enum DiskOperation {
    Write(u64, Vec<u8>),
    Length(u64),
    Sync,
}

/// A disk in memory with everything that was done to it.
#[derive(Clone, Debug, Default)]
struct RecordedDisk(Arc<Mutex<DiskRecord>>);

#[derive(Default)]
struct DiskRecord {
    bytes: Vec<u8>,
    operations: Vec<DiskOperation>,
    /// What readers see, and at every operation the revision that they saw.
    cache: Option<Arc<WatchCache>>,
    seen: Vec<Revision>,
    failure: Option<DiskFailure>,
}

/// Operations that fail.
#[derive(Clone, Copy, Debug)]
struct DiskFailure {
    /// The operations before.
    after: usize,
    count: usize,
    /// Whether the disk does them nevertheless.
    is_done: bool,
}

impl std::fmt::Debug for DiskRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} operations", self.operations.len())
    }
}

impl RecordedDisk {
    fn with(bytes: Vec<u8>) -> RecordedDisk {
        RecordedDisk(Arc::new(Mutex::new(DiskRecord { bytes, ..DiskRecord::default() })))
    }

    fn record(&self, operation: DiskOperation) -> io::Result<()> {
        let mut record = self.0.lock();
        if let Some(failure) = &mut record.failure {
            let fails = failure.after == 0 && failure.count > 0;
            failure.count -= usize::from(fails);
            failure.after = failure.after.saturating_sub(1);
            if fails {
                if failure.is_done {
                    apply(&mut record.bytes, &operation);
                }
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        apply(&mut record.bytes, &operation);
        let seen = record.cache.as_ref().map_or(0, |cache| cache.revision());
        record.seen.push(seen);
        record.operations.push(operation);
        Ok(())
    }

    /// Opens a storage on this disk.
    fn open(&self) -> EmbeddedStorage {
        let storage = EmbeddedStorage::on(self.clone(), LIMITS).expect("a storage");
        self.0.lock().cache = Some(storage.cache().clone());
        storage
    }

    fn count(&self) -> usize {
        self.0.lock().operations.len()
    }
}

impl StorageBackend for RecordedDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let record = self.0.lock();
        let from = usize::try_from(offset).expect("a small file");
        let part = record.bytes.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(part);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.record(DiskOperation::Length(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.record(DiskOperation::Sync)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.record(DiskOperation::Write(offset, data.to_vec()))
    }
}

/// Does an operation; what is beyond the end of the file is lost.
fn apply(bytes: &mut Vec<u8>, operation: &DiskOperation) {
    match operation {
        DiskOperation::Write(offset, data) => {
            let from = usize::try_from(*offset).expect("a small file").min(bytes.len());
            let end = (from + data.len()).min(bytes.len());
            bytes[from..end].copy_from_slice(&data[..end - from]);
        }
        DiskOperation::Length(length) => bytes.resize(usize::try_from(*length).expect("a small file"), 0),
        DiskOperation::Sync => {}
    }
}

/// What is left of an operation that was not synced.
fn remains(operation: &DiskOperation, rng: &mut Rng) -> Vec<DiskOperation> {
    let DiskOperation::Write(offset, data) = operation else {
        return if rng.bool() { vec![operation.clone()] } else { Vec::new() };
    };
    let part = |from: usize, end: usize| DiskOperation::Write(offset + from as u64, data[from..end].to_vec());
    match rng.u8(..5) {
        0 => Vec::new(),
        1 => vec![operation.clone()],
        // Torn at any byte: the first or the last part is written.
        2 => vec![part(0, rng.usize(..=data.len()))],
        3 => vec![part(rng.usize(..=data.len()), data.len())],
        // Any of its sectors.
        _ => {
            let all = (0..data.len()).step_by(SECTOR).map(|from| (from, (from + SECTOR).min(data.len())));
            all.filter(|_| rng.bool()).map(|(from, end)| part(from, end)).collect()
        }
    }
}

/// The file after a power loss behind `end` operations. What was synced is whole; of the rest any part is there, in any
/// order.
fn after_power_loss(start: &[u8], operations: &[DiskOperation], is_synced: bool, rng: &mut Rng) -> Vec<u8> {
    let last_sync = operations.iter().rposition(|operation| matches!(operation, DiskOperation::Sync));
    let synced = if is_synced { last_sync.map_or(0, |at| at + 1) } else { 0 };
    let mut bytes = start.to_vec();
    operations[..synced].iter().for_each(|operation| apply(&mut bytes, operation));
    let mut left: Vec<DiskOperation> = Vec::new();
    for operation in &operations[synced..] {
        left.extend(remains(operation, rng));
    }
    // A length is part of the metadata, which file systems keep in order.
    let (lengths, mut writes): (Vec<DiskOperation>, Vec<DiskOperation>) =
        left.into_iter().partition(|operation| matches!(operation, DiskOperation::Length(_)));
    rng.shuffle(&mut writes);
    lengths.iter().chain(&writes).for_each(|operation| apply(&mut bytes, operation));
    bytes
}

/// A write that was acknowledged: the object's name, and its text unless it was deleted.
type Acknowledged = (String, Option<String>);

/// All writes of a run, by revision.
#[derive(Default)]
struct WrittenHistory {
    by_revision: BTreeMap<Revision, Acknowledged>,
    /// The number of disk operations after which everything up to a revision was acknowledged.
    acknowledged: Vec<(usize, Revision)>,
}

impl WrittenHistory {
    /// The objects after all writes up to a revision.
    fn at(&self, revision: Revision) -> BTreeMap<String, String> {
        let mut objects = BTreeMap::new();
        for (name, text) in self.by_revision.range(..=revision).map(|(_, write)| write) {
            match text {
                Some(text) => objects.insert(name.clone(), text.clone()),
                None => objects.remove(name),
            };
        }
        objects
    }

    /// The newest revision that was acknowledged before this many operations were done.
    fn acknowledged_at(&self, operations: usize) -> Revision {
        let before = self.acknowledged.iter().take_while(|(count, _)| *count <= operations);
        before.last().map_or(0, |(_, revision)| *revision)
    }
}

/// Writes batches of objects of many sizes, closes the storage, and writes again.
async fn written(disk: &RecordedDisk, batches: usize, rng: &mut Rng) -> WrittenHistory {
    let mut history = WrittenHistory::default();
    let mut storage = disk.open();
    let mut revisions: BTreeMap<String, Revision> = BTreeMap::new();
    for batch in 0..batches {
        if batch == batches / 2 {
            drop(storage);
            storage = disk.open();
        }
        let names: BTreeSet<u8> = (0..rng.u8(1..12)).map(|_| rng.u8(..24)).collect();
        let writes = names.into_iter().map(|number| {
            let name = format!("object-{number}");
            let expected = revisions.get(&name).copied();
            let filler = "x".repeat(if rng.u8(..8) == 0 { rng.usize(..40_000) } else { rng.usize(..600) });
            let text = (expected.is_none() || rng.u8(..5) > 0).then(|| format!("{{\"batch\":{batch},\"{filler}\":0}}"));
            (name, expected, text)
        });
        let writes: Vec<(String, Option<Revision>, Option<String>)> = writes.collect();
        let (before, visible) = (disk.count(), storage.cache().revision());
        let results = join_all(writes.iter().map(|(name, expected, text)| {
            let text = text.clone().map(String::into_boxed_str);
            storage.write(Write::new(ObjectKey::new("configmaps", "shop", name), *expected, text))
        }));
        for ((name, _, text), result) in writes.iter().zip(results.await) {
            let revision = result.expect("an acknowledged write");
            match text {
                Some(_) => _ = revisions.insert(name.clone(), revision),
                None => _ = revisions.remove(name),
            }
            history.by_revision.insert(revision, (name.clone(), text.clone()));
        }
        history.acknowledged.push((disk.count(), storage.cache().revision()));
        // The writer may split a batch; its first part is seen after its second sync, which makes it the last commit.
        let record = disk.0.lock();
        let syncs = record.operations[before..].iter().enumerate().filter(|(_, o)| matches!(o, DiskOperation::Sync));
        let second = syncs.map(|(at, _)| at).nth(1).expect("two syncs");
        let seen = &record.seen[before..=before + second];
        assert!(seen.iter().all(|revision| *revision == visible), "readers saw a write that was not on the disk");
    }
    history
}

/// Opens the file as pilot-discovery does, and compares. Returns the revision, or why the file was refused.
fn checked(path: &Path, image: &[u8], history: &WrittenHistory) -> Result<Revision, String> {
    fs::write(path, image).expect("a file");
    let storage = EmbeddedStorage::open(path, LIMITS).map_err(|error| error.to_string())?;
    let (objects, revision) = storage.cache().current();
    let found: BTreeMap<String, String> =
        objects.iter().map(|(key, stored)| (key.name.to_string(), stored.text.to_string())).collect();
    if found != history.at(revision) {
        return Err(format!("the objects are not those of revision {revision}"));
    }
    // Old versions are whole too.
    for old in (revision.saturating_sub(5)..revision).filter(|old| storage.cache().at(*old).is_ok()) {
        let then = storage.cache().at(old).map_err(|error| error.to_string())?;
        let then = then.iter().map(|(key, stored)| (key.name.to_string(), stored.text.to_string()));
        if then.collect::<BTreeMap<String, String>>() != history.at(old) {
            return Err(format!("the history is not that of revision {old}"));
        }
    }
    Ok(revision)
}

/// A new file, as the storage makes it.
fn new_file(path: &Path) -> Vec<u8> {
    drop(EmbeddedStorage::open(path, LIMITS).expect("a storage"));
    fs::read(path).expect("the file")
}

fn image_count(default: usize) -> usize {
    std::env::var("POWER_LOSS_IMAGES").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[tokio::test]
async fn acknowledged_writes_survive_a_power_loss_at_any_byte() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut rng = Rng::with_seed(7);
    let start = new_file(&folder.path().join("new.redb"));
    let disk = RecordedDisk::with(start.clone());
    let history = written(&disk, 24, &mut rng).await;
    let operations = disk.0.lock().operations.clone();
    let path = folder.path().join("after.redb");
    let (images, mut newer, mut repaired) = (image_count(120), 0, 0);
    for number in 0..images {
        let end = rng.usize(..=operations.len());
        let image = after_power_loss(&start, &operations[..end], true, &mut rng);
        let expected = history.acknowledged_at(end);
        let revision = checked(&path, &image, &history).unwrap_or_else(|e| panic!("image {number} at {end}: {e}"));
        assert!(revision >= expected, "image {number} at {end}: revision {revision} of {expected} acknowledged");
        newer += usize::from(revision > expected);
        if number % 4 == 0 {
            repaired += power_loss_while_repairing(&path, image, &history, expected, &mut rng);
        }
    }
    println!(
        "{images} power losses in {} operations and {} writes: none lost an acknowledged write, {newer} kept one more, \
         {repaired} more while the file was repaired",
        operations.len(),
        history.by_revision.len()
    );
    assert!(repaired > 0 && newer > 0);
}

/// The power is lost again while the storage opens the file. Returns the number of states.
fn power_loss_while_repairing(
    path: &Path,
    image: Vec<u8>,
    history: &WrittenHistory,
    expected: Revision,
    rng: &mut Rng,
) -> usize {
    let disk = RecordedDisk::with(image.clone());
    drop(disk.open());
    let operations = disk.0.lock().operations.clone();
    for _ in 0..2 {
        let end = rng.usize(..=operations.len());
        let again = after_power_loss(&image, &operations[..end], true, rng);
        let revision = checked(path, &again, history).unwrap_or_else(|e| panic!("while repairing at {end}: {e}"));
        assert!(revision >= expected, "while repairing at {end}: revision {revision} of {expected} acknowledged");
    }
    2
}

#[tokio::test]
async fn a_disk_that_does_not_sync_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut rng = Rng::with_seed(11);
    let start = new_file(&folder.path().join("new.redb"));
    let disk = RecordedDisk::with(start.clone());
    let history = written(&disk, 8, &mut rng).await;
    let operations = disk.0.lock().operations.clone();
    let (mut lost, images) = (0, 20);
    for _ in 0..images {
        let end = rng.usize(operations.len() / 2..=operations.len());
        let image = after_power_loss(&start, &operations[..end], false, &mut rng);
        let revision = checked(&folder.path().join("after.redb"), &image, &history);
        let is_kept = revision.is_ok_and(|revision| revision >= history.acknowledged_at(end));
        lost += usize::from(!is_kept);
    }
    println!("{lost} of {images} power losses without syncs lose writes");
    assert!(lost > images / 2);
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("configmaps", "shop", name)
}

/// All objects of a storage, and its revision.
fn contents(storage: &EmbeddedStorage) -> (BTreeMap<String, StoredObject>, Revision) {
    let (objects, revision) = storage.cache().current();
    (objects.iter().map(|(key, stored)| (key.name.to_string(), StoredObject::clone(stored))).collect(), revision)
}

/// A write of an object in the revision that the cache has.
async fn write(storage: &EmbeddedStorage, name: &str, text: Option<&str>) -> WriteResult {
    let expected = storage.cache().get(&key(name)).map(|stored| stored.revision);
    storage.write(Write::new(key(name), expected, text.map(Into::into))).await
}

/// How often writes had each result.
#[derive(Debug, Default)]
struct ResultCounts {
    done: usize,
    failed: usize,
    unconfirmed: usize,
}

/// Writes while the disk fails, and checks that every answer is true, that the next writes work, and that cache and file
/// are equal.
async fn write_while_failing(failure: DiskFailure, start: &[u8], counts: &mut ResultCounts) {
    let disk = RecordedDisk::with(start.to_vec());
    let storage = disk.open();
    for name in ["changed", "deleted"] {
        write(&storage, name, Some("{\"is\":\"old\"}")).await.expect("a write");
    }
    let (before, revision) = contents(&storage);
    disk.0.lock().failure = Some(failure);
    let large = format!("{{\"is\":\"{}\"}}", "x".repeat(100_000));
    let writes = [("changed", Some("{\"is\":\"new\"}")), ("deleted", None), ("made", Some(&*large))];
    let results = join_all(writes.map(|(name, text)| write(&storage, name, text))).await;
    disk.0.lock().failure = None;

    let (found, _) = contents(&storage);
    let mut unconfirmed = BTreeSet::new();
    for ((name, text), result) in writes.into_iter().zip(results) {
        match result {
            Ok(_) => {
                assert_eq!(found.get(name).map(|stored| &*stored.text), text, "{failure:?}: {name} is done");
                counts.done += 1;
            }
            Err(StoreError::Failed { .. }) => {
                assert_eq!(found.get(name), before.get(name), "{failure:?}: {name} is unchanged");
                counts.failed += 1;
            }
            Err(StoreError::Unconfirmed { .. }) => {
                unconfirmed.insert(name);
                counts.unconfirmed += 1;
            }
            Err(other) => panic!("{failure:?}: {name}: {other}"),
        }
    }
    for name in ["changed", "deleted", "made", "other"] {
        let mut written = write(&storage, name, Some("{\"is\":\"after\"}")).await;
        // The first write finds out that the object was changed after all.
        if unconfirmed.contains(name) && matches!(written, Err(StoreError::Conflict { .. })) {
            written = write(&storage, name, Some("{\"is\":\"after\"}")).await;
        }
        written.unwrap_or_else(|error| panic!("{failure:?}: {error}"));
    }
    // Readers were shown what the file has, at every revision.
    let shown = contents(&storage);
    let history: Vec<_> = (revision..=shown.1).map(|at| storage.cache().at(at).expect("in the history")).collect();
    drop(storage);
    let again = disk.open();
    assert_eq!(contents(&again), shown, "{failure:?}");
    let found: Vec<_> = (revision..=shown.1).map(|at| again.cache().at(at).expect("in the history")).collect();
    assert!(found == history, "{failure:?}: another history");
}

#[tokio::test]
async fn a_failed_commit_leaves_cache_and_file_equal_and_the_next_writes_work() {
    let folder = tempfile::tempdir().expect("a folder");
    let start = new_file(&folder.path().join("new.redb"));
    let mut counts = ResultCounts::default();
    // Behind the operations of the commit and of the opening after it nothing fails.
    for after in 0..40 {
        for (count, is_done) in [(1, false), (1, true), (12, false), (12, true)] {
            write_while_failing(DiskFailure { after, count, is_done }, &start, &mut counts).await;
        }
    }
    println!("writes while the disk failed: {counts:?}");
    assert!(counts.done > 0 && counts.failed > 0 && counts.unconfirmed > 0, "{counts:?}");
}
