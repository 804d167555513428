//! The embedded storage: restarts, two processes, damaged files, and kill -9 under write load. `CONFIG_STORAGE_ROUNDS`
//! sets the number of kills, `CONFIG_STORAGE_OBJECTS` the number of other objects in the file.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use configapi::store::cache::HistoryLimits;
use configapi::store::embedded::EmbeddedStorage;
use configapi::store::{ObjectKey, Storage, StoreError, Write};

/// Where the writing process keeps its file.
const FILE: &str = "CONFIG_STORAGE_FILE";
/// Clients that write at once.
const WRITERS: usize = 16;

fn open(path: &Path) -> EmbeddedStorage {
    EmbeddedStorage::open(path, HistoryLimits::default()).expect("a storage")
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("configmaps", "shop", name)
}

fn put(name: &str, expected: Option<u64>, number: u64) -> Write {
    let text = format!("{{\"metadata\":{{\"name\":\"{name}\"}},\"data\":{{\"number\":\"{number}\"}}}}");
    Write::new(key(name), expected, Some(text.into()))
}

fn number(text: &str) -> u64 {
    let value: serde_json::Value = serde_json::from_str(text).expect("whole objects");
    value["data"]["number"].as_str().and_then(|text| text.parse().ok()).expect("a number")
}

#[tokio::test]
async fn objects_and_history_survive_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.redb");
    let (first, second) = {
        let storage = open(&path);
        let first = storage.write(put("a", None, 1)).await.expect("a write");
        let second = storage.write(put("a", Some(first), 2)).await.expect("a write");
        storage.write(put("b", None, 1)).await.expect("a write");
        storage.write(Write::new(key("b"), Some(second + 1), None)).await.expect("a delete");
        (first, second)
    };
    let storage = open(&path);
    assert_eq!(storage.cache().revision(), second + 2);
    assert_eq!(storage.cache().get(&key("a")).map(|stored| stored.revision), Some(second));
    assert_eq!(storage.cache().get(&key("b")), None);
    let then = storage.cache().at(first).expect("in the history");
    assert_eq!(then.get(&key("a")).map(|stored| number(&stored.text)), Some(1));
    let (events, _) = storage.cache().events_after(first).expect("in the history");
    let shown: Vec<(u64, bool, bool)> =
        events.iter().map(|event| (event.revision, event.before.is_some(), event.after.is_some())).collect();
    assert_eq!(shown, [(second, true, true), (second + 1, false, true), (second + 2, true, false)]);
}

#[tokio::test]
async fn a_write_with_a_wrong_revision_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let storage = open(&folder.path().join("config.redb"));
    let revision = storage.write(put("a", None, 1)).await.expect("a write");
    for expected in [None, Some(revision + 1)] {
        let refused = storage.write(put("a", expected, 2)).await;
        assert_eq!(refused, Err(StoreError::Conflict { key: key("a"), found: Some(revision) }));
    }
    let absent = storage.write(Write::new(key("x"), None, None)).await;
    assert_eq!(absent, Err(StoreError::Conflict { key: key("x"), found: None }));
    assert_eq!(storage.cache().revision(), revision);
}

#[tokio::test]
async fn the_history_is_bounded_in_memory_and_on_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.redb");
    let limits = HistoryLimits { events: 10, bytes: 1 << 20 };
    let last = {
        let storage = EmbeddedStorage::open(&path, limits).expect("a storage");
        let mut revision = None;
        for number in 0..50 {
            revision = Some(storage.write(put("a", revision, number)).await.expect("a write"));
        }
        revision.expect("writes")
    };
    let storage = open(&path);
    assert!(storage.cache().at(last - 9).is_ok());
    assert!(storage.cache().at(last - 20).is_err(), "trimmed on disk too");
}

#[test]
fn a_second_process_and_a_damaged_file_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.redb");
    let _first = open(&path);
    let second = EmbeddedStorage::open(&path, HistoryLimits::default()).err().expect("refused").to_string();
    assert!(second.contains("could not open the configuration storage") && second.contains("config.redb"), "{second}");
    let damaged = folder.path().join("damaged.redb");
    std::fs::write(&damaged, vec![7u8; 64 * 1024]).expect("a file");
    let error = EmbeddedStorage::open(&damaged, HistoryLimits::default()).err().expect("refused").to_string();
    assert!(error.contains("damaged.redb") && error.contains("restore it from a copy"), "{error}");
    assert_eq!(std::fs::read(&damaged).expect("the file"), vec![7u8; 64 * 1024], "kept as it is");
}

#[tokio::test]
async fn damage_is_found_and_never_taken_for_an_object() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.redb");
    let storage = open(&path);
    for number in 0..200 {
        storage.write(put(&format!("object-{number}"), None, number)).await.expect("a write");
    }
    // What kill -9 leaves: the file says that it was not closed, and redb repairs it.
    let in_use = std::fs::read(&path).expect("the file");
    drop(storage);
    let closed = std::fs::read(&path).expect("the file");
    assert!(in_use[9] & 2 == 2 && closed[9] & 2 == 0, "whether the file was closed");
    // In memory: hundreds of files are made and synced.
    let memory = Path::new("/dev/shm");
    let copies = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.expect("a folder");
    for (state, whole) in [("in use", in_use), ("closed", closed)] {
        let (refused, count) = damaged(copies.path(), state, &whole);
        println!("{refused} of {count} damaged files that were {state} were refused");
        assert!(refused > 16);
    }
}

/// Opens files with every kind of damage. Returns how many were refused, and how many there were.
fn damaged(folder: &Path, state: &str, whole: &[u8]) -> (usize, usize) {
    // Every sixty-fourth of the file, every byte of its header with one bit changed, and every length in steps.
    let filled = (0..64).map(|part| (whole.len() / 64 * part, 64, 0xff));
    let flipped = (0..320).map(|at| (at, 1, 1));
    let (mut refused, mut count) = (0, 0);
    for (at, length, mask) in filled.chain(flipped) {
        // The bit that names the last commit: the file is then, bit by bit, one whose last commit was interrupted.
        if state == "in use" && (at, mask) == (9, 1) {
            continue;
        }
        let mut bytes = whole.to_vec();
        bytes[at..at + length].iter_mut().for_each(|byte| *byte = if length == 1 { *byte ^ mask } else { mask });
        refused += usize::from(is_refused(&folder.join("damaged.redb"), &bytes));
        count += 1;
    }
    for part in 0..16 {
        refused += usize::from(is_refused(&folder.join("cut.redb"), &whole[..whole.len() / 16 * part]));
        count += 1;
    }
    (refused, count)
}

/// Whether a storage with these bytes is refused. If it opens, it has all 200 objects. A refused file is not changed.
fn is_refused(path: &Path, bytes: &[u8]) -> bool {
    std::fs::write(path, bytes).expect("a file");
    match EmbeddedStorage::open(path, HistoryLimits::default()) {
        // Unused parts may have anything in them.
        Ok(storage) => {
            let (objects, _) = storage.cache().current();
            let found = objects.iter().filter(|(key, stored)| *key.name == *format!("object-{}", number(&stored.text)));
            // An empty file is a new storage.
            assert!(bytes.is_empty() || found.count() == 200, "{} of 200 objects", objects.len());
            false
        }
        Err(error) => {
            let error = error.to_string();
            let name = path.file_name().expect("a name").to_string_lossy();
            assert!(error.contains(&*name) && error.contains("restore it from a copy"), "{error}");
            assert!(std::fs::read(path).expect("the file") == bytes, "the refused file was changed");
            true
        }
    }
}

/// Writes until the file may not grow, and prints what was acknowledged. Started by the test below.
#[tokio::test]
#[ignore = "runs in a separate process"]
async fn filling_process() {
    let Ok(path) = std::env::var(FILE) else { return };
    let storage = open(Path::new(&path));
    let filler = "x".repeat(64 * 1024);
    let (mut refused, mut last) = (0, String::new());
    for number in 0..1000 {
        let name = format!("object-{number}");
        let text = format!("{{\"metadata\":{{\"name\":\"{name}\"}},\"data\":{{\"filler\":\"{filler}\"}}}}");
        match storage.write(Write::new(key(&name), None, Some(text.into()))).await {
            Ok(_) => println!("\nack {name}"),
            Err(error) => {
                println!("\nrefused {error}");
                assert!(storage.cache().get(&key(&name)).is_none(), "not in the cache");
                refused += 1;
                last = name;
            }
        }
        if refused == 3 {
            break;
        }
    }
    write_small(&storage, &last).await;
}

/// Writes that still fit, to an object that was refused too.
async fn write_small(storage: &EmbeddedStorage, refused: &str) {
    let mut expected = None;
    for number in 0..3 {
        let written = storage.write(put(refused, expected, number)).await;
        expected = Some(written.unwrap_or_else(|error| panic!("a small write, without a restart: {error}")));
    }
    println!("\nack {refused}");
}

#[tokio::test]
async fn a_full_disk_refuses_writes_and_loses_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.redb");
    let program = std::env::current_exe().expect("this program");
    // A limit on the size of files fails writes as a full disk does.
    let script = "trap '' XFSZ; ulimit -f 8192; exec \"$0\" --exact filling_process --ignored --nocapture";
    let output = Command::new("sh").args(["-c", script]).arg(program).env(FILE, &path).output().expect("a process");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let acknowledged: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("ack ")).collect();
    let refused: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("refused ")).collect();
    println!("{} acknowledged, then: {refused:?}", acknowledged.len());
    assert!(!acknowledged.is_empty() && refused.len() == 3, "{text}");
    assert!(refused[0].contains("could not write configmaps") && refused[0].contains("unchanged"), "{refused:?}");
    let storage = open(&path);
    assert!(acknowledged.iter().all(|name| storage.cache().get(&key(name)).is_some()));
    storage.write(put("after", None, 1)).await.expect("room again");
}

/// Writes until killed, and prints every acknowledged write. Started by the test below.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs in a separate process"]
async fn writing_process() {
    let Ok(path) = std::env::var(FILE) else { return };
    let storage = Arc::new(open(Path::new(&path)));
    let writers = (0..WRITERS).map(|writer| tokio::spawn(write_forever(storage.clone(), format!("object-{writer}"))));
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("a writer");
    }
}

async fn write_forever(storage: Arc<EmbeddedStorage>, name: String) {
    let stored = storage.cache().get(&key(&name));
    let mut next = stored.as_ref().map_or(0, |stored| number(&stored.text) + 1);
    let mut expected = stored.map(|stored| stored.revision);
    loop {
        let revision = storage.write(put(&name, expected, next)).await.expect("a write");
        // One call, so that a line is never cut.
        let line = format!("ack {name} {next} {revision}\n");
        std::io::stdout().lock().write_all(line.as_bytes()).expect("the pipe");
        (expected, next) = (Some(revision), next + 1);
    }
}

fn setting(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Makes this many objects of about a kilobyte.
async fn fill(path: &Path, count: u32) {
    let storage = open(path);
    let object = |number: u32| {
        let (name, filler) = (format!("other-{number}"), "x".repeat(900));
        let text = format!("{{\"metadata\":{{\"name\":\"{name}\"}},\"data\":{{\"filler\":\"{filler}\"}}}}");
        storage.write(Write::new(key(&name), None, Some(text.into())))
    };
    for written in futures_util::future::join_all((0..count).map(object)).await {
        written.expect("a write");
    }
}

#[tokio::test]
async fn no_acknowledged_write_is_lost_by_kill_9() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.redb");
    let (rounds, others) = (setting("CONFIG_STORAGE_ROUNDS", 4), setting("CONFIG_STORAGE_OBJECTS", 100));
    fill(&path, others).await;
    let (mut total, mut busy, mut slowest) = (0, Duration::ZERO, Duration::ZERO);
    for round in 0..rounds {
        let start = Instant::now();
        let (acknowledged, highest, count) = killed_round(&path, round);
        busy += start.elapsed();
        total += count;
        let start = Instant::now();
        let storage = open(&path);
        slowest = slowest.max(start.elapsed());
        assert!(storage.cache().revision() >= highest, "round {round}: the storage went back");
        let kept = storage.cache().current().0.keys().filter(|key| key.name.starts_with("other-")).count();
        assert_eq!(kept, others as usize, "round {round}: other objects are lost");
        for (name, written) in &acknowledged {
            let stored = storage.cache().get(&key(name)).unwrap_or_else(|| panic!("round {round}: {name} is lost"));
            let found = number(&stored.text);
            // The write after the last acknowledged one may have been done.
            assert!((*written..=written + 1).contains(&found), "round {round}: {name} is {found}, expected {written}");
        }
    }
    println!(
        "{rounds} kills, {total} acknowledged writes in {busy:?}, slowest open {slowest:?} with {others} other objects"
    );
    assert!(total > 0);
}

/// Lets a process write for a while and kills it. Returns the last acknowledged number of each object, the highest
/// revision and the number of acknowledged writes.
fn killed_round(path: &Path, round: u32) -> (BTreeMap<String, u64>, u64, usize) {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .args(["--exact", "writing_process", "--ignored", "--nocapture", "--test-threads=1"])
        .env(FILE, path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the writing process");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let (mut acknowledged, mut highest, mut count) = (BTreeMap::new(), 0, 0);
    // A different number of writes in each round.
    let enough = 50 + usize::try_from(round).unwrap_or_default() * 37 % 400;
    for line in lines.map_while(Result::ok) {
        // The test program prints a line before the first.
        let Some(at) = line.find("ack ") else { continue };
        let words: Vec<&str> = line[at..].split(' ').collect();
        let [_, name, written, revision] = words[..] else { continue };
        let (Ok(written), Ok(revision)) = (written.parse(), revision.parse::<u64>()) else { continue };
        acknowledged.insert(name.to_owned(), written);
        highest = highest.max(revision);
        count += 1;
        if count == enough {
            child.kill().expect("kill -9");
        }
    }
    child.wait().expect("the writing process");
    (acknowledged, highest, count)
}
