//! A real etcd cluster on loopback. Members can be killed and restarted with their data.

use std::net::{Ipv4Addr, SocketAddr};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::Request;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::certificates::Authority;
use crate::process::Process;
use crate::{client, ports, servers, wait};

/// Members of one cluster.
pub struct EtcdCluster {
    members: Vec<EtcdMember>,
    _folder: TempDir,
}

struct EtcdMember {
    /// Of clients.
    address: SocketAddr,
    args: Vec<String>,
    process: Option<Process>,
}

impl EtcdCluster {
    /// Starts members and waits until they have a leader.
    pub async fn start(count: usize) -> EtcdCluster {
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        let addresses: Vec<(SocketAddr, SocketAddr)> = (0..count).map(|_| (loopback(), loopback())).collect();
        let peers: Vec<String> =
            addresses.iter().enumerate().map(|(n, (_, peer))| format!("m{n}=http://{peer}")).collect();
        let member = |(number, (address, peer)): (usize, &(SocketAddr, SocketAddr))| {
            let args = vec![
                format!("--name=m{number}"),
                format!("--data-dir={}", folder.path().join(format!("m{number}")).display()),
                format!("--listen-client-urls=http://{address}"),
                format!("--advertise-client-urls=http://{address}"),
                format!("--listen-peer-urls=http://{peer}"),
                format!("--initial-advertise-peer-urls=http://{peer}"),
                format!("--initial-cluster={}", peers.join(",")),
                "--heartbeat-interval=50".to_owned(),
                "--election-timeout=500".to_owned(),
                "--unsafe-no-fsync".to_owned(),
                "--log-level=error".to_owned(),
            ];
            EtcdMember { address: *address, args, process: None }
        };
        let members = addresses.iter().enumerate().map(member).collect();
        let mut cluster = EtcdCluster { members, _folder: folder };
        for number in 0..count {
            cluster.launch(number);
        }
        cluster.ready().await;
        cluster
    }

    /// One member that requires TLS with a client certificate of this authority.
    pub async fn start_with_tls(authority: &Authority) -> EtcdCluster {
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        let (address, health, peer) = (loopback(), loopback(), loopback());
        let own = authority.workload("spiffe://test/etcd");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap_or_else(|e| panic!("could not write {name}: {e}"));
            path.display().to_string()
        };
        let args = vec![
            format!("--data-dir={}", folder.path().join("data").display()),
            format!("--listen-client-urls=https://{address},http://{health}"),
            format!("--advertise-client-urls=https://{address}"),
            format!("--listen-peer-urls=http://{peer}"),
            "--client-cert-auth".to_owned(),
            format!("--cert-file={}", file("cert.pem", &own.chain)),
            format!("--key-file={}", file("key.pem", &own.key)),
            format!("--trusted-ca-file={}", file("ca.pem", &authority.root())),
            "--unsafe-no-fsync".to_owned(),
            "--log-level=error".to_owned(),
        ];
        let member = |address| EtcdMember { address, args: args.clone(), process: None };
        let mut cluster = EtcdCluster { members: vec![member(health), member(address)], _folder: folder };
        cluster.launch(0);
        cluster.ready().await;
        cluster
    }

    fn launch(&mut self, number: usize) {
        let member = &mut self.members[number];
        member.process = Some(Process::start("etcd", &servers::binary("etcd"), &member.args, &[]));
    }

    /// Waits until the running members have a leader.
    async fn ready(&mut self) {
        for member in self.members.iter_mut().filter(|member| member.process.is_some()) {
            wait::until("a ready etcd", async || {
                if let Some(process) = &mut member.process {
                    process.check_alive();
                }
                let reply = client::get(member.address, "etcd", "/health").await?;
                if reply.status.is_success() { Ok(()) } else { Err(reply.body) }
            })
            .await;
        }
    }

    pub fn address(&self, number: usize) -> SocketAddr {
        self.members[number].address
    }

    /// `etcd://` with all members, beginning with this one.
    pub fn url(&self, first: usize) -> String {
        let count = self.members.len();
        let members: Vec<String> = (0..count).map(|n| self.members[(first + n) % count].address.to_string()).collect();
        format!("etcd://{}/test", members.join(","))
    }

    /// Kills a member as a crash does.
    pub fn kill(&mut self, number: usize) {
        self.members[number].process = None;
    }

    /// Restarts a member with its data.
    pub async fn resume(&mut self, number: usize) {
        self.launch(number);
        self.ready().await;
    }

    /// The number of the member that leads.
    pub async fn leader(&self) -> usize {
        wait::until("a leader", async || {
            for (number, member) in self.members.iter().enumerate().filter(|(_, member)| member.process.is_some()) {
                let Ok(status) = self.try_request(member.address, "/v3/maintenance/status", json!({})).await else {
                    continue;
                };
                if status["leader"] == status["header"]["member_id"] {
                    return Ok(number);
                }
            }
            Err("no member leads".to_owned())
        })
        .await
    }

    /// Compacts the whole history. Returns the compacted revision.
    pub async fn compact(&self, number: usize) -> u64 {
        let any = self.request(number, "/v3/kv/range", json!({"key": BASE64_STANDARD.encode("any")})).await;
        let revision = any["header"]["revision"].as_str().and_then(|text| text.parse().ok());
        let revision = revision.unwrap_or_else(|| panic!("no revision in {any}"));
        self.request(number, "/v3/kv/compaction", json!({"revision": revision, "physical": true})).await;
        revision
    }

    /// Writes a key directly.
    pub async fn put(&self, number: usize, key: &str, value: &str) {
        let encoded = |text: &str| BASE64_STANDARD.encode(text);
        self.request(number, "/v3/kv/put", json!({"key": encoded(key), "value": encoded(value)})).await;
    }

    /// Deletes a key, or all keys with this prefix if it ends with a slash.
    pub async fn delete(&self, number: usize, key: &str) {
        let encoded = |text: &str| BASE64_STANDARD.encode(text);
        let end = key.strip_suffix('/').map(|folder| encoded(&format!("{folder}0")));
        self.request(number, "/v3/kv/deleterange", json!({"key": encoded(key), "range_end": end})).await;
    }

    /// Requires a user and a password from now on.
    pub async fn require_user(&self, number: usize, password: &str) {
        let calls = [
            ("/v3/auth/user/add", json!({"name": "root", "password": password})),
            ("/v3/auth/role/add", json!({"name": "root"})),
            ("/v3/auth/user/grant", json!({"user": "root", "role": "root"})),
            ("/v3/auth/enable", json!({})),
        ];
        for (path, question) in calls {
            self.request(number, path, question).await;
        }
    }

    /// A request to the JSON gateway of a member, which must succeed.
    async fn request(&self, number: usize, path: &str, question: Value) -> Value {
        let reply = self.try_request(self.members[number].address, path, question).await;
        reply.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    async fn try_request(&self, address: SocketAddr, path: &str, question: Value) -> Result<Value, String> {
        let request = Request::post(path).header("host", "etcd").body(question.to_string());
        let request = request.map_err(|error| error.to_string())?;
        let reply = client::send(address, request).await.map_err(|error| error.to_string())?;
        if reply.status.is_success() { Ok(reply.json()) } else { Err(reply.body) }
    }
}

fn loopback() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()))
}
