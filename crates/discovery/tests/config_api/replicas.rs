//! Three replicas on a real etcd with three members.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::clock::JumpingClock;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::etcd::EtcdCluster;
use testkit::{client, wait};

use super::BINARY;

/// Replicas and their sockets.
struct Replicas {
    cluster: EtcdCluster,
    servers: Vec<DiscoveryProcess>,
    /// Of the first replica.
    clock: JumpingClock,
    folder: TempDir,
}

impl Replicas {
    async fn start() -> Replicas {
        let cluster = EtcdCluster::start(3).await;
        let folder = tempfile::tempdir().expect("a folder");
        let clock = JumpingClock::new(folder.path());
        let start = async |number: usize| {
            let env = if number == 0 { clock.env() } else { Vec::new() };
            let socket = folder.path().join(format!("{number}.sock"));
            let args = vec![
                format!("--configAPI=unix://{}", socket.display()),
                format!("--configStorage={}", cluster.url(number)),
            ];
            DiscoveryProcess::start(BINARY, DiscoveryOptions { args, env, ..DiscoveryOptions::default() }).await
        };
        let (one, two, three) = tokio::join!(start(0), start(1), start(2));
        Replicas { cluster, servers: vec![one, two, three], clock, folder }
    }

    /// A request to a replica: head and body of the reply.
    async fn request(&self, number: usize, method: &str, path: &str, body: &str) -> (String, String) {
        request(&self.socket(number), method, path, body).await
    }

    fn socket(&self, number: usize) -> PathBuf {
        self.folder.path().join(format!("{number}.sock"))
    }

    /// Hosts of VirtualServices that a replica serves to proxies.
    async fn mesh_has(&self, number: usize, host: &str) -> Result<(), String> {
        let reply = client::get(self.servers[number].http(), "discovery", "/debug/configz").await?;
        if reply.body.contains(host) { Ok(()) } else { Err(format!("replica {number} does not have {host}")) }
    }
}

/// A request to a socket: head and body of the reply.
async fn request(socket: &Path, method: &str, path: &str, body: &str) -> (String, String) {
    let stream = tokio::net::UnixStream::connect(socket).await.expect("a connection");
    let reply = super::socket_request(stream, method, path, body).await;
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    (head.to_owned(), body.to_owned())
}

const ROUTES: &str = "/apis/networking.istio.io/v1/namespaces/default/virtualservices";

fn route(name: &str, host: &str) -> String {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": name},
        "spec": {"hosts": [host], "http": [{"directResponse": {"status": 418}}]},
    })
    .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_on_one_etcd_serve_the_same_world() {
    let mut replicas = Replicas::start().await;
    let (head, _) = replicas.request(0, "POST", ROUTES, &route("one", "one.example.com")).await;
    assert!(head.starts_with("HTTP/1.1 201"), "{head}");
    // A write of one replica is read from another at once.
    let (head, body) = replicas.request(1, "GET", &format!("{ROUTES}/one"), "").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let stored: Value = serde_json::from_str(&body).expect("an object");
    let (head, _) = replicas.request(2, "POST", ROUTES, &route("one", "other.example.com")).await;
    assert!(head.starts_with("HTTP/1.1 409"), "{head}");
    let leader = replicas.cluster.leader().await;
    replicas.cluster.kill(leader);
    let mut changed = stored.clone();
    changed["spec"]["hosts"] = json!(["two.example.com"]);
    wait::until("a write after a member was killed", async || {
        let (head, body) = replicas.request(1, "PUT", &format!("{ROUTES}/one"), &changed.to_string()).await;
        let is_done = head.starts_with("HTTP/1.1 200") || head.starts_with("HTTP/1.1 409");
        if is_done { Ok(()) } else { Err(body) }
    })
    .await;
    let written = Instant::now();
    for number in 0..3 {
        wait::until("the change in the mesh", async || replicas.mesh_has(number, "two.example.com").await).await;
    }
    println!("all meshes had the change after {:?}", written.elapsed());
    assert!(written.elapsed() < Duration::from_secs(2), "{:?}", written.elapsed());
    without_quorum(&mut replicas, leader).await;
}

/// Writes are refused, reads and the mesh go on, and nothing is lost.
async fn without_quorum(replicas: &mut Replicas, killed: usize) {
    let second = (killed + 1) % 3;
    replicas.cluster.kill(second);
    let (head, body) = replicas.request(0, "POST", ROUTES, &route("lost", "lost.example.com")).await;
    let is_clear = ["HTTP/1.1 503", "HTTP/1.1 504"].iter().any(|status| head.starts_with(status));
    assert!(is_clear && body.contains("etcd") && body.contains("default/lost"), "{head}\n{body}");
    let (head, body) = replicas.request(2, "GET", &format!("{ROUTES}/one"), "").await;
    assert!(head.starts_with("HTTP/1.1 200") && body.contains("two.example.com"), "{head}");
    assert!(head.to_lowercase().contains("warning: 299") && head.contains("could not confirm"), "{head}");
    replicas.mesh_has(1, "two.example.com").await.expect("the mesh goes on");
    replicas.cluster.resume(killed).await;
    wait::until("a write with a majority", async || {
        let (head, body) = replicas.request(0, "POST", ROUTES, &route("three", "three.example.com")).await;
        let is_done = head.starts_with("HTTP/1.1 201") || head.starts_with("HTTP/1.1 409");
        if is_done { Ok(()) } else { Err(body) }
    })
    .await;
    for number in 0..3 {
        wait::until("the new route", async || replicas.mesh_has(number, "three.example.com").await).await;
        replicas.mesh_has(number, "two.example.com").await.expect("nothing is lost");
    }
}

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/istio-system/leases/istio-gateway-status-leader";
const GATEWAYS: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/default/gateways";

impl Replicas {
    /// The Lease of those who write statuses, as a replica returns it: holder, number of changes, and its version.
    async fn lease(&self, number: usize) -> Result<(String, u64, u64), String> {
        let (head, body) = self.request(number, "GET", LEASE, "").await;
        let lease: Value = serde_json::from_str(&body).map_err(|error| format!("{error}: {head}"))?;
        let holder = lease["spec"]["holderIdentity"].as_str().filter(|holder| !holder.is_empty());
        let holder = holder.ok_or(format!("no holder: {body}"))?.to_owned();
        let version = lease.pointer("/metadata/resourceVersion").and_then(Value::as_str).and_then(|v| v.parse().ok());
        Ok((holder, lease["spec"]["leaseTransitions"].as_u64().unwrap_or_default(), version.ok_or("no version")?))
    }

    /// Makes a Gateway and waits for its status.
    async fn has_status_written(&self, name: &str) {
        let gateway = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": name},
            "spec": {"gatewayClassName": "istio", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
        });
        let (head, body) = self.request(1, "POST", GATEWAYS, &gateway.to_string()).await;
        assert!(head.starts_with("HTTP/1.1 201"), "{head} {body}");
        wait::until_within(Duration::from_secs(60), name, async || {
            let (_, body) = self.request(2, "GET", &format!("{GATEWAYS}/{name}"), "").await;
            if body.contains("\"Accepted\"") && body.contains("\"lastTransitionTime\"") { Ok(()) } else { Err(body) }
        })
        .await;
    }
}

/// Only one replica writes statuses. A clock that jumps neither ends a leadership nor makes versions go back; the death
/// of the leader passes it on.
#[tokio::test(flavor = "multi_thread")]
async fn one_replica_leads_whatever_its_clock_shows() {
    let mut replicas = Replicas::start().await;
    let patience = Duration::from_secs(60);
    let first = wait::until_within(patience, "a leader", async || replicas.lease(0).await).await;
    for number in 1..3 {
        let seen = wait::until("the same leader", async || replicas.lease(number).await).await;
        assert_eq!(seen.0, first.0, "replica {number} sees another leader");
    }
    replicas.has_status_written("one").await;
    let mut version = first.2;
    for (name, seconds) in [("an-hour-ahead", 3600), ("a-day-back", -86_400), ("right", 0)] {
        replicas.clock.set(seconds);
        // Several renewals with the new time.
        for _ in 0..3 {
            let renewed = wait::until_within(patience, name, async || match replicas.lease(1).await? {
                (_, _, now) if now <= version => Err(format!("still version {now}")),
                lease => Ok(lease),
            })
            .await;
            assert_eq!((&renewed.0, renewed.1), (&first.0, first.1), "{name}: another replica leads");
            version = renewed.2;
        }
        replicas.has_status_written(name).await;
    }
    let is_leader = |server: &mut DiscoveryProcess| first.0.ends_with(&format!("-{}", server.process().id()));
    let leader = replicas.servers.iter_mut().position(is_leader).expect("the leader is one of them");
    replicas.servers[leader].process().kill();
    let survivor = (leader + 1) % 3;
    let next = wait::until_within(patience, "another leader", async || match replicas.lease(survivor).await? {
        (holder, ..) if holder == first.0 => Err(holder),
        lease => Ok(lease),
    })
    .await;
    println!("{} led, then {}", first.0, next.0);
    assert!(next.2 > version);
}

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// How soon every replica must have a write that another one acknowledged.
const FRESH: Duration = Duration::from_secs(2);
/// Writes of each client.
const WRITES: usize = 40;

fn numbered(name: &str, number: usize) -> String {
    let data = json!({"number": number.to_string()});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}).to_string()
}

/// Writes the numbers up to `WRITES` to one object. A write that was not acknowledged is repeated. Returns how many were.
async fn write_numbers(socket: PathBuf, name: &str, done: &AtomicUsize) -> usize {
    let path = format!("{CONFIG_MAPS}/{name}");
    let (mut repeated, end) = (0, Instant::now() + wait::PATIENCE);
    for number in 1..=WRITES {
        loop {
            let (head, body) = request(&socket, "PUT", &path, &numbered(name, number)).await;
            if head.starts_with("HTTP/1.1 200") {
                break;
            }
            let is_clear = ["HTTP/1.1 503", "HTTP/1.1 504"].iter().any(|status| head.starts_with(status));
            assert!(is_clear && Instant::now() < end, "{name} {number}: {head}\n{body}");
            repeated += 1;
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    repeated
}

/// The numbers that a replica has, without asking etcd.
async fn cached_numbers(socket: &Path) -> Vec<(String, usize)> {
    let (_, body) = request(socket, "GET", &format!("{CONFIG_MAPS}?resourceVersion=0"), "").await;
    let list: Value = serde_json::from_str(&body).unwrap_or_default();
    let number = |item: &Value| {
        let name = item.pointer("/metadata/name")?.as_str().filter(|name| name.starts_with("writer-"))?;
        Some((name.to_owned(), item.pointer("/data/number")?.as_str()?.parse().ok()?))
    };
    list["items"].as_array().into_iter().flatten().filter_map(number).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_killed_under_writes_of_all_replicas_loses_none_and_leaves_none_behind() {
    let mut replicas = Replicas::start().await;
    let names: Vec<String> = (0..6).map(|number| format!("writer-{number}")).collect();
    for name in &names {
        let (head, body) = replicas.request(0, "POST", CONFIG_MAPS, &numbered(name, 0)).await;
        assert!(head.starts_with("HTTP/1.1 201"), "{head}\n{body}");
    }
    let leader = replicas.cluster.leader().await;
    let (total, done) = (names.len() * WRITES, AtomicUsize::new(0));
    let sockets: Vec<PathBuf> = (0..3).map(|number| replicas.socket(number)).collect();
    let writers = names.iter().enumerate().map(|(n, name)| write_numbers(sockets[n % 3].clone(), name, &done));
    let kill = async {
        wait::until("writes", async || match done.load(Ordering::Relaxed) {
            some if some > total / 4 => Ok(()),
            some => Err(some.to_string()),
        })
        .await;
        replicas.cluster.kill(leader);
        done.load(Ordering::Relaxed)
    };
    let begun = Instant::now();
    let (repeated, before) = tokio::join!(join_all(writers), kill);
    let (written, busy) = (Instant::now(), begun.elapsed());
    assert!(before < total, "killed when all {total} writes were done");
    let expected: Vec<(String, usize)> = names.iter().map(|name| (name.clone(), WRITES)).collect();
    for socket in &sockets {
        wait::until("the last write of every client", async || match cached_numbers(socket).await {
            found if found == expected => Ok(()),
            found => Err(format!("{found:?}")),
        })
        .await;
    }
    let delay = written.elapsed();
    println!(
        "{total} writes in {busy:?}, the leader killed after {before}: {} repeated, none lost, all replicas had them after \
         {delay:?}",
        repeated.iter().sum::<usize>()
    );
    assert!(delay < FRESH, "{delay:?}");
}
