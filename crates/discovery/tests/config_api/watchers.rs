//! Watchers that do not read: they take no memory that grows, and hold up neither writers nor other watchers.

use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::{ApiMesh, socket_request};

const WATCHERS: usize = 40;
const OBJECTS: usize = 20;
const WRITES: usize = 1000;
/// Of each object. All events of all watchers would be 1.2 GB.
const SIZE: usize = 30_000;
/// Of anonymous memory: the history has 64 MiB, and each connection has buffers of some hundred kB.
const MOST_GROWTH: u64 = 250 << 20;
const LIMIT: Duration = Duration::from_secs(120);

async fn watch(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).await.expect("a connection");
    let request = "GET /api/v1/namespaces/default/configmaps?watch=true&allowWatchBookmarks=false HTTP/1.1\r\n\
                   host: x\r\n\r\n";
    stream.write_all(request.as_bytes()).await.expect("a request");
    stream
}

/// Reads until this many events of written objects were seen.
async fn read_events(stream: UnixStream, count: usize) {
    let (mut lines, mut seen) = (BufReader::new(stream), 0);
    let mut line = Vec::new();
    while seen < count {
        line.clear();
        let length = lines.read_until(b'\n', &mut line).await.expect("an event");
        assert!(length > 0, "the watch ended after {seen} events");
        let is_event = |kind: &[u8]| line.starts_with(kind);
        seen += usize::from(is_event(b"{\"type\":\"ADDED\"") || is_event(b"{\"type\":\"MODIFIED\""));
        assert!(!is_event(b"{\"type\":\"ERROR\""), "{}", String::from_utf8_lossy(&line));
    }
}

/// Anonymous memory of a process, in bytes.
fn anonymous(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("RssAnon");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// Writes all versions of one object, one after the other.
async fn write(socket: &Path, name: String) {
    for version in 0..WRITES / OBJECTS {
        let text = format!("{version}{}", "x".repeat(SIZE));
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": text}});
        let (method, path) = match version {
            0 => ("POST", "/api/v1/namespaces/default/configmaps".to_owned()),
            _ => ("PUT", format!("/api/v1/namespaces/default/configmaps/{name}")),
        };
        let stream = UnixStream::connect(socket).await.expect("a connection");
        let reply = socket_request(stream, method, &path, &object.to_string()).await;
        assert!(reply.starts_with("HTTP/1.1 20"), "{}", &reply[..reply.len().min(300)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_that_do_not_read_cost_little_and_hold_up_nobody() {
    let mut mesh = ApiMesh::start_without_kubeconfig(&[]).await;
    let socket = mesh.folder.path().join("config.sock");
    let unread: Vec<UnixStream> = join_all((0..WATCHERS).map(|_| watch(&socket))).await;
    let reader = tokio::spawn(read_events(watch(&socket).await, WRITES));
    let process = mesh.discovery.process().id();
    let before = anonymous(process);
    let started = std::time::Instant::now();
    let writes = join_all((0..OBJECTS).map(|number| write(&socket, format!("object-{number}"))));
    timeout(LIMIT, writes).await.expect("writes that are not held up");
    let written = started.elapsed();
    timeout(LIMIT, reader).await.expect("events in time").expect("a reader that got all events");
    let growth = anonymous(process).saturating_sub(before);
    println!(
        "{WRITES} writes of {SIZE} bytes in {written:?} with {WATCHERS} unread watchers, all read after {:?}: +{} MB",
        started.elapsed(),
        growth >> 20
    );
    assert!(growth < MOST_GROWTH, "{} MB", growth >> 20);
    // One that reads late gets everything that the history has.
    let late = unread.into_iter().next().expect("a watcher");
    timeout(LIMIT, read_events(late, WRITES)).await.expect("events in time");
}
