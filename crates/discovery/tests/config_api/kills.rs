//! pilot-discovery killed under write load, again and again: no acknowledged write is lost, and it is ready again at once.
//! `CONFIG_API_KILLS` and `CONFIG_API_OBJECTS` set the number of kills and of other objects; `PILOTAGE_DISCOVERY` names
//! another binary, such as a release build, which must be ready within a second.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::process::signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{MissedTickBehavior, interval};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WRITERS: usize = 50;
/// Of each writer: together 500 writes a second.
const PERIOD: Duration = Duration::from_millis(100);
/// Restart to ready, with a release build.
const READY: Duration = Duration::from_secs(1);
/// The same with a debug build on a busy machine.
const READY_DEBUG: Duration = Duration::from_secs(20);

fn setting(name: &str, usual: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Status and body, or `None` if the server is gone.
async fn request(socket: &Path, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
    let mut stream = UnixStream::connect(socket).await.ok()?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.ok()?;
    let (head, body) = reply.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    // A body that was cut off is no answer.
    Some((status, serde_json::from_str(body).ok()?))
}

fn config_map(name: &str, number: u64, filler: &str) -> String {
    let data = json!({"number": number.to_string(), "filler": filler});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}).to_string()
}

fn number(object: &Value) -> u64 {
    object["data"]["number"].as_str().and_then(|text| text.parse().ok()).expect("a whole object")
}

fn revision(object: &Value) -> u64 {
    object
        .pointer("/metadata/resourceVersion")
        .and_then(Value::as_str)
        .and_then(|t| t.parse().ok())
        .expect("a revision")
}

/// One object and what is known of it.
#[derive(Clone, Debug, Default)]
struct WrittenObject {
    name: String,
    attempted: u64,
    acknowledged: u64,
    revision: u64,
}

impl WrittenObject {
    /// Writes until the server is gone. Answers other than success end the test.
    async fn write(mut self, socket: PathBuf, done: Arc<AtomicUsize>) -> WrittenObject {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        loop {
            ticks.tick().await;
            self.attempted += 1;
            let body = config_map(&self.name, self.attempted, "");
            let path = format!("{CONFIG_MAPS}/{}", self.name);
            let Some((status, object)) = request(&socket, "PUT", &path, &body).await else { return self };
            assert_eq!(status, 200, "{object}");
            (self.acknowledged, self.revision) = (self.attempted, revision(&object));
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Compares with the server after a restart, and goes on from what it has.
    async fn check(mut self, socket: &Path, round: usize) -> WrittenObject {
        let found = request(socket, "GET", &format!("{CONFIG_MAPS}/{}", self.name), "").await;
        let Some((200, object)) = found else { panic!("round {round}: {} is lost: {found:?}", self.name) };
        let number = number(&object);
        assert!((self.acknowledged..=self.attempted).contains(&number), "round {round}: {self:?} is {number}");
        assert!(revision(&object) >= self.revision, "round {round}: {self:?} went back: {object}");
        self.acknowledged = number;
        self
    }
}

/// A server, its socket, and the objects that are not written again.
struct KilledServer {
    discovery: DiscoveryProcess,
    socket: PathBuf,
    others: usize,
    _folder: TempDir,
}

impl KilledServer {
    async fn start(binary: &str, others: usize) -> KilledServer {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("config.sock");
        let args = vec![
            format!("--configAPI=unix://{}", socket.display()),
            format!("--configStorage={}", folder.path().join("config.redb").display()),
        ];
        let discovery = DiscoveryProcess::start(binary, DiscoveryOptions { args, ..DiscoveryOptions::default() }).await;
        let filler = "x".repeat(900);
        let numbers: Vec<usize> = (0..others).collect();
        for part in numbers.chunks(200) {
            let bodies: Vec<String> = part.iter().map(|n| config_map(&format!("other-{n}"), 0, &filler)).collect();
            let made = join_all(bodies.iter().map(|body| request(&socket, "POST", CONFIG_MAPS, body))).await;
            assert!(made.iter().all(|reply| matches!(reply, Some((201, _)))), "could not make the objects");
        }
        KilledServer { discovery, socket, others, _folder: folder }
    }

    async fn count_of_others(&self) -> usize {
        let list = request(&self.socket, "GET", CONFIG_MAPS, "").await.expect("a list").1;
        let items = list["items"].as_array().expect("items");
        let is_other = |item: &&Value| item["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("other-"));
        items.iter().filter(is_other).count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_under_load_loses_no_acknowledged_write() {
    let (kills, others) = (setting("CONFIG_API_KILLS", 4), setting("CONFIG_API_OBJECTS", 200));
    let given = std::env::var("PILOTAGE_DISCOVERY").ok();
    let is_release = given.is_some() || !cfg!(debug_assertions);
    let limit = if is_release { READY } else { READY_DEBUG };
    let mut server = KilledServer::start(given.as_deref().unwrap_or(super::BINARY), others).await;
    let mut objects: Vec<WrittenObject> = Vec::new();
    for number in 0..WRITERS {
        let name = format!("object-{number}");
        let made = request(&server.socket, "POST", CONFIG_MAPS, &config_map(&name, 0, "")).await;
        assert!(matches!(made, Some((201, _))), "{made:?}");
        objects.push(WrittenObject { name, ..WrittenObject::default() });
    }
    let (mut busy, mut times) = (Duration::ZERO, Vec::new());
    let done = Arc::new(AtomicUsize::new(0));
    for round in 0..kills {
        let start = Instant::now();
        let before = done.load(Ordering::Relaxed);
        let writers: Vec<_> =
            objects.drain(..).map(|object| tokio::spawn(object.write(server.socket.clone(), done.clone()))).collect();
        // A different number of writes in each round.
        let enough = 60 + round * 37 % 300;
        testkit::wait::until_within(Duration::from_secs(120), "writes", async || {
            match done.load(Ordering::Relaxed) - before {
                count if count >= enough => Ok(()),
                count => Err(format!("{count} of {enough}")),
            }
        })
        .await;
        signal(server.discovery.process().id(), "KILL");
        for writer in writers {
            objects.push(writer.await.expect("a writer"));
        }
        busy += start.elapsed();
        let start = Instant::now();
        server.discovery.restart().await;
        times.push(start.elapsed());
        objects = join_all(objects.into_iter().map(|object| object.check(&server.socket, round))).await;
        assert_eq!(server.count_of_others().await, server.others, "round {round}: other objects are lost");
    }
    times.sort();
    let (writes, slowest) = (done.load(Ordering::Relaxed), times.last().copied().unwrap_or_default());
    println!(
        "{kills} kills under {:.0} writes a second, {others} other objects: 0 of {writes} acknowledged writes lost; ready \
         after {:?} at the median, {slowest:?} at most",
        writes as f64 / busy.as_secs_f64(),
        times[times.len() / 2]
    );
    assert!(slowest < limit, "ready after {slowest:?}, expected {limit:?}");
}
