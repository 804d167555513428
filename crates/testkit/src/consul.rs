//! A real Consul: one server with its data on disk, or several that elect a leader. Uses loopback only.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use http::{Method, Request};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::error::ReplyError;
use crate::process::Process;
use crate::{client, ports, servers, wait};

/// Time for an answer.
const ANSWER: Duration = Duration::from_secs(10);

/// One server. Its state survives a kill.
pub struct Consul {
    process: Process,
    args: Vec<String>,
    http: SocketAddr,
    token: Option<String>,
    _folder: TempDir,
}

/// The ports of one server.
#[derive(Clone, Copy)]
struct ConsulPorts {
    http: u16,
    server: u16,
    serf: u16,
}

impl Consul {
    /// Starts one server and waits until it is the leader.
    pub async fn start() -> Consul {
        Self::start_with(json!({})).await
    }

    /// Starts one server with additional settings.
    pub async fn start_with(settings: Value) -> Consul {
        let mut consul = Self::spawn("consul", fresh_ports(), &[], 1, settings);
        consul.ready().await;
        consul
    }

    /// Starts a cluster and waits until it has a leader.
    pub async fn cluster(size: usize) -> Vec<Consul> {
        let ports: Vec<ConsulPorts> = (0..size).map(|_| fresh_ports()).collect();
        let mut servers: Vec<Consul> = ports
            .iter()
            .enumerate()
            .map(|(i, own)| Self::spawn(&format!("consul-{i}"), *own, &ports, size, json!({})))
            .collect();
        for server in &mut servers {
            server.ready().await;
        }
        servers
    }

    fn spawn(name: &str, own: ConsulPorts, others: &[ConsulPorts], expected: usize, settings: Value) -> Consul {
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        let join: Vec<String> = others.iter().map(|p| format!("127.0.0.1:{}", p.serf)).collect();
        let mut config = json!({
            "node_name": name,
            "server": true,
            "bootstrap_expect": expected,
            "data_dir": folder.path().join("data"),
            "bind_addr": "127.0.0.1",
            "client_addr": "127.0.0.1",
            "advertise_addr": "127.0.0.1",
            "ports": {
                "http": own.http, "server": own.server, "serf_lan": own.serf,
                "dns": -1, "grpc": -1, "grpc_tls": -1, "serf_wan": -1,
            },
            "retry_join": join,
            "retry_interval": "250ms",
            "disable_update_check": true,
            "leave_on_terminate": false,
            // Fast elections and failure detection.
            "performance": {"raft_multiplier": 1},
            "log_level": "warn",
        });
        merge(&mut config, settings);
        let file = folder.path().join("consul.json");
        std::fs::write(&file, config.to_string()).unwrap_or_else(|e| panic!("could not write {name}'s file: {e}"));
        let args = vec!["agent".to_owned(), format!("-config-file={}", path(&file))];
        let process = Process::start(name, &servers::binary("consul"), &args, &[]);
        let http = SocketAddr::from((Ipv4Addr::LOCALHOST, own.http));
        Consul { process, args, http, token: None, _folder: folder }
    }

    pub fn address(&self) -> SocketAddr {
        self.http
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.http)
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Sends this token with further requests.
    pub fn use_token(&mut self, token: &str) {
        self.token = Some(token.to_owned());
    }

    /// Kills it, like a crash.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Restarts it with its state.
    pub async fn restart(&mut self) {
        self.process = Process::start("consul", &servers::binary("consul"), &self.args, &[]);
        self.ready().await;
    }

    pub async fn ready(&mut self) {
        wait::until_within(wait::PATIENCE * 3, "a Consul with a leader", async || {
            self.process.check_alive();
            let leader = self.call(Method::GET, "/v1/status/leader", None).await?;
            if leader.trim().len() > "\"\"".len() { Ok(()) } else { Err(format!("no leader: {leader}")) }
        })
        .await;
    }

    /// Waits until it has replayed its log: a consistent read sees everything that was ever written.
    pub async fn replayed(&self) {
        wait::until("a consistent read of Consul", async || {
            Ok(self.call(Method::GET, "/v1/catalog/services?consistent", None).await?)
        })
        .await;
    }

    /// Whether this server is the leader.
    pub async fn leads(&self) -> bool {
        let own = self.call(Method::GET, "/v1/agent/self", None).await;
        own.is_ok_and(|text| {
            serde_json::from_str::<Value>(&text).unwrap_or_default()["Stats"]["consul"]["leader"] == "true"
        })
    }

    /// Sends a request; returns the body, or an error for a status other than 2xx.
    pub async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<String, ReplyError> {
        let mut request = Request::builder().method(method).uri(path).header("host", "consul");
        if let Some(token) = &self.token {
            request = request.header("x-consul-token", token);
        }
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        // A server that was just started may accept a request and never answer it.
        let reply = tokio::time::timeout(ANSWER, client::send(self.http, request.body(body)?)).await;
        let reply = reply.map_err(|_| ReplyError::no_response(self.http)(format!("{path} took {ANSWER:?}")))??;
        if !reply.status.is_success() {
            return Err(ReplyError::Status { request: path.to_owned(), status: reply.status, body: reply.body });
        }
        Ok(reply.body)
    }

    /// PUT that must succeed.
    pub async fn put(&self, path: &str, body: Value) -> String {
        self.call(Method::PUT, path, Some(body)).await.unwrap_or_else(|e| panic!("{e}"))
    }

    /// Registers an instance with its check in the catalog, as an external node.
    pub async fn register(&self, node: &str, service: &Value, status: &str) {
        let (id, name) = (&service["ID"], &service["Service"]);
        let check = json!({
            "Node": node, "CheckID": format!("check-{}", id.as_str().unwrap_or_default()), "Name": "own",
            "ServiceID": id, "ServiceName": name, "Status": status,
        });
        let body = json!({
            "Node": node, "Address": "127.0.0.1", "SkipNodeUpdate": false, "Service": service, "Check": check,
        });
        self.put("/v1/catalog/register", body).await;
    }

    /// Removes an instance from the catalog.
    pub async fn deregister(&self, node: &str, id: &str) {
        self.put("/v1/catalog/deregister", json!({"Node": node, "ServiceID": id})).await;
    }
}

/// Merges settings recursively.
fn merge(config: &mut Value, more: Value) {
    match (config, more) {
        (Value::Object(config), Value::Object(more)) => {
            for (key, value) in more {
                merge(config.entry(key).or_insert(Value::Null), value);
            }
        }
        (config, more) => *config = more,
    }
}

fn fresh_ports() -> ConsulPorts {
    ConsulPorts { http: ports::free(), server: ports::free(), serf: ports::free() }
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
