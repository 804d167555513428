//! A small kubelet for a real API server: port-forward and exec reach processes of a test as if they were pods on a node.
//! `cargo xtask setup kubelet` builds it.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::certificates::Authority;
use crate::kubernetes::ApiServer;
use crate::process::Process;
use crate::{ports, servers, wait};

/// Name of the node.
pub const NODE: &str = "node-1";
/// Start-up timeout on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ports and commands of a pod.
#[derive(Clone, Debug, Default)]
pub struct PodProcess {
    /// Address of each port.
    pub ports: BTreeMap<u16, SocketAddr>,
    /// Program and first arguments of each command.
    pub commands: BTreeMap<String, Vec<String>>,
}

/// The kubelet of `NODE`.
pub struct Kubelet {
    pods: Mutex<BTreeMap<String, PodProcess>>,
    file: PathBuf,
    _folder: TempDir,
    _process: Process,
}

impl Kubelet {
    /// Starts it and registers its node.
    pub async fn start(server: &ApiServer) -> Kubelet {
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        let own = Authority::new().workload("spiffe://test/kubelet");
        let path = |name: &str| folder.path().join(name);
        for (name, text) in [("tls.crt", &*own.chain), ("tls.key", &*own.key), ("pods.json", "{}")] {
            fs::write(path(name), text).unwrap_or_else(|e| panic!("could not write {name}: {e}"));
        }
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()));
        let args = [
            format!("--address={address}"),
            format!("--pods={}", path("pods.json").display()),
            format!("--cert={}", path("tls.crt").display()),
            format!("--key={}", path("tls.key").display()),
        ];
        let mut process = Process::start("kubelet", &servers::binary("kubelet"), &args, &[]);
        wait::until_within(PATIENCE, "the kubelet's port", async || {
            process.check_alive();
            TcpStream::connect(address).await.map(drop).map_err(|e| e.to_string())
        })
        .await;
        register(server, address).await;
        Kubelet { pods: Mutex::default(), file: path("pods.json"), _folder: folder, _process: process }
    }

    /// Sets the process of a pod, `namespace/name`.
    pub fn run(&self, pod: &str, process: PodProcess) {
        let mut pods = self.pods.lock();
        pods.insert(pod.to_owned(), process);
        let shown: Value =
            pods.iter().map(|(name, pod)| (name.clone(), shown(pod))).collect::<serde_json::Map<_, _>>().into();
        // Renamed, because the kubelet may read it at any time.
        let fresh = self.file.with_extension("new");
        let written = fs::write(&fresh, shown.to_string()).and_then(|()| fs::rename(&fresh, &self.file));
        written.unwrap_or_else(|e| panic!("could not write {}: {e}", self.file.display()));
    }
}

fn shown(pod: &PodProcess) -> Value {
    let ports: BTreeMap<String, String> = pod.ports.iter().map(|(p, a)| (p.to_string(), a.to_string())).collect();
    json!({"ports": ports, "commands": pod.commands})
}

async fn register(server: &ApiServer, address: SocketAddr) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
    server.create("/api/v1/nodes", &node).await.unwrap_or_else(|e| panic!("could not create the node: {e}"));
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": address.ip().to_string()}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": address.port()}},
    }});
    let path = format!("/api/v1/nodes/{NODE}/status");
    server.patch(&path, &status).await.unwrap_or_else(|e| panic!("could not set the node's address: {e}"));
}
