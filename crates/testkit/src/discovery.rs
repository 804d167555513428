//! pilot-discovery as a child process on a folder of configuration files. The caller passes the binary:
//! `env!("CARGO_BIN_EXE_pilot-discovery")`.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::process::Process;
use crate::{client, ports, wait};

/// Options of the server.
#[derive(Clone, Debug, Default)]
pub struct DiscoveryOptions {
    /// Files in the watched folder: name and text.
    pub files: Vec<(String, String)>,
    /// MeshConfig; empty means defaults.
    pub mesh: String,
    /// MeshNetworks; empty means none.
    pub networks: String,
    pub env: Vec<(String, String)>,
    /// Additional arguments.
    pub args: Vec<String>,
    /// Whether its ports are open on all addresses of this machine, and not on loopback alone.
    pub open: bool,
    /// Whether its log goes to pipes that are never read.
    pub unread: bool,
}

pub struct DiscoveryProcess {
    binary: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    grpc: SocketAddr,
    http: SocketAddr,
    monitoring: SocketAddr,
    folder: TempDir,
    process: Process,
}

impl DiscoveryProcess {
    /// Starts the server and waits until it is ready.
    pub async fn start(binary: &str, setup: DiscoveryOptions) -> DiscoveryProcess {
        let mut server = Self::start_unready(binary, setup).await;
        server.ready().await;
        server
    }

    /// Starts the server and waits until it responds, ready or not.
    pub async fn start_unready(binary: &str, setup: DiscoveryOptions) -> DiscoveryProcess {
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        let config = folder.path().join("config");
        fs::create_dir(&config).unwrap_or_else(|e| panic!("could not make the config folder: {e}"));
        let text_or = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
        let mesh = put(folder.path(), "mesh.yaml", &text_or(&setup.mesh, "{}\n"));
        let networks = put(folder.path(), "networks.yaml", &text_or(&setup.networks, "networks: {}\n"));
        for (name, text) in &setup.files {
            put(&config, name, text);
        }
        let [grpc, http, monitoring] = [(); 3].map(|()| SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free())));
        let mut args = vec![
            "discovery".to_owned(),
            "--registries=".to_owned(),
            format!("--configDir={}", config.display()),
            format!("--meshConfig={}", mesh.display()),
            format!("--networksConfig={}", networks.display()),
        ];
        let host = if setup.open { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::LOCALHOST };
        let [grpc_at, http_at, monitoring_at] =
            [grpc, http, monitoring].map(|address| SocketAddr::from((host, address.port())));
        args.extend(addresses(grpc_at, http_at, monitoring_at));
        args.extend(setup.args);
        let binary = PathBuf::from(binary);
        let start = if setup.unread { Process::start_unread } else { Process::start };
        let process = start("pilot-discovery", &binary, &args, &setup.env);
        let mut server = DiscoveryProcess { binary, args, env: setup.env, grpc, http, monitoring, folder, process };
        wait::until("a response of pilot-discovery", async || {
            server.process.check_alive();
            Ok(client::get(server.http, "discovery", "/ready").await?)
        })
        .await;
        server
    }

    pub fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    pub fn http(&self) -> SocketAddr {
        self.http
    }

    pub fn monitoring(&self) -> SocketAddr {
        self.monitoring
    }

    /// The watched folder.
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("config")
    }

    /// Its output so far.
    pub fn output(&self) -> String {
        self.process.output()
    }

    /// The id of its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Writes a file into the watched folder atomically.
    pub fn write(&self, name: &str, text: &str) {
        let part = put(self.folder.path(), "part", text);
        fs::rename(part, self.config().join(name)).unwrap_or_else(|e| panic!("could not move {name} in: {e}"));
    }

    /// Removes a file from the watched folder.
    pub fn remove(&self, name: &str) {
        fs::remove_file(self.config().join(name)).unwrap_or_else(|e| panic!("could not remove {name}: {e}"));
    }

    /// Kills it and restarts it with the same arguments and ports.
    pub async fn restart(&mut self) {
        self.process.kill();
        self.process = Process::start("pilot-discovery", &self.binary, &self.args, &self.env);
        self.ready().await;
    }

    /// Waits until it is ready.
    pub async fn ready(&mut self) {
        wait::until("a ready pilot-discovery", async || {
            self.process.check_alive();
            let reply = client::get(self.http, "discovery", "/ready").await?;
            if reply.status.is_success() { Ok(()) } else { Err(reply.status.to_string()) }
        })
        .await;
    }
}

/// Flags for the ports of pilot-discovery or istiod; the TLS port is off, ControlZ has any free port.
pub(crate) fn addresses(grpc: SocketAddr, http: SocketAddr, monitoring: SocketAddr) -> [String; 6] {
    [
        format!("--grpcAddr={grpc}"),
        format!("--httpAddr={http}"),
        format!("--monitoringAddr={monitoring}"),
        "--secureGRPCAddr=".to_owned(),
        "--httpsAddr=".to_owned(),
        "--ctrlz_port=0".to_owned(),
    ]
}

fn put(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap_or_else(|e| panic!("could not write {name}: {e}"));
    path
}
