//! Fixture: a pilot-agent process with its directory, ports and child processes.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use testkit::backend::HttpBackend;
use testkit::client;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::error::ReplyError;
use testkit::process::{Process, alive_with, is_alive};
use testkit::{ports, programs, servers, wait};

pub(crate) const AGENT: &str = env!("CARGO_BIN_EXE_pilot-agent");

/// There is no CA, so sidecars use plain text.
const MESH: &str = "enableAutoMtls: false\n";

/// A running agent.
pub(crate) struct Agent {
    pub(crate) process: Process,
    pub(crate) admin: u16,
    pub(crate) status: u16,
    pub(crate) folder: TempDir,
}

/// How an agent is started, in addition to its identity and ports.
pub(crate) struct AgentSetup<'a> {
    /// Address of the control plane; an unused port suffices for some tests.
    pub(crate) discovery: SocketAddr,
    pub(crate) binary: PathBuf,
    pub(crate) flags: &'a [&'a str],
    pub(crate) env: &'a [(&'a str, &'a str)],
    /// Envoy's admin port; a free one if 0.
    pub(crate) admin: u16,
    pub(crate) configured_by: ConfiguredBy,
    /// The proxy's role.
    pub(crate) role: &'a str,
    /// Working directory; the test's own if empty.
    pub(crate) work_folder: PathBuf,
}

/// Source of the agent's settings.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConfiguredBy {
    /// Pilot 0.8: flags.
    Flags,
    /// Today: the environment.
    Environment,
}

impl Default for AgentSetup<'_> {
    fn default() -> Self {
        let unused = (Ipv4Addr::LOCALHOST, ports::free()).into();
        AgentSetup {
            discovery: unused,
            binary: "no-envoy".into(),
            flags: &[],
            env: &[],
            admin: 0,
            configured_by: ConfiguredBy::Flags,
            role: "sidecar",
            work_folder: PathBuf::new(),
        }
    }
}

impl Agent {
    /// Starts an agent without waiting.
    pub(crate) fn start(setup: &AgentSetup<'_>) -> Agent {
        let folder = tempfile::tempdir().unwrap();
        let admin = if setup.admin == 0 { ports::free() } else { setup.admin };
        let status = ports::free();
        let (line, config) = match setup.configured_by {
            ConfiguredBy::Flags => (flags(setup, folder.path(), admin, status), None),
            ConfiguredBy::Environment => {
                ("proxy sidecar".to_owned(), Some(config(setup, folder.path(), admin, status)))
            }
        };
        let mut args: Vec<&str> = line.split_whitespace().collect();
        args.extend(setup.flags);
        // No capture, and no static listeners, whose ports two agents would share.
        let own =
            [("ISTIO_META_INTERCEPTION_MODE", "NONE"), ("ENVOY_STATUS_PORT", "0"), ("ENVOY_PROMETHEUS_PORT", "0")];
        let config = config.as_deref().map(|text| ("PROXY_CONFIG", text));
        let env = own.into_iter().chain(setup.env.iter().copied()).chain(config);
        let env: Vec<_> = env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let process = match setup.work_folder.to_str().unwrap() {
            "" => Process::start("pilot-agent", Path::new(AGENT), &args, &env),
            folder => {
                let args: Vec<&str> = ["-C", folder, AGENT].into_iter().chain(args).collect();
                Process::start("pilot-agent", Path::new("/usr/bin/env"), &args, &env)
            }
        };
        Agent { process, admin, status, folder }
    }

    /// Directory of generated files and sockets.
    pub(crate) fn config_path(&self) -> PathBuf {
        self.folder.path().join("proxy")
    }

    /// Waits until Envoy is ready.
    pub(crate) async fn ready(&mut self) {
        let status = SocketAddr::from((Ipv4Addr::LOCALHOST, self.status));
        wait::until("a ready envoy", async || {
            self.process.check_alive();
            let reply = client::get(status, "agent", "/healthz/ready").await?;
            if reply.status.is_success() { Ok(()) } else { Err(reply.body) }
        })
        .await;
    }

    /// A page of Envoy's admin port.
    pub(crate) async fn admin_page(&self, path: &str) -> Result<String, String> {
        Ok(client::get((Ipv4Addr::LOCALHOST, self.admin).into(), "admin", path).await?.body)
    }

    /// Waits until the log has this many lines with the text.
    pub(crate) async fn logs(&self, text: &str, times: usize) {
        wait::until(&format!("{times} lines with {text:?}"), async || {
            let output = self.process.output();
            if output.matches(text).count() >= times { Ok(()) } else { Err(output) }
        })
        .await;
    }

    /// Running Envoys or stubs of this agent.
    pub(crate) fn envoys(&self) -> Vec<u32> {
        alive_with(&self.config_path().to_string_lossy())
    }

    /// Waits for exactly one Envoy that is not one of the old processes.
    pub(crate) async fn new_envoy(&self, old: &[u32]) -> u32 {
        wait::until("a new envoy", async || match self.envoys()[..] {
            [one] if !old.contains(&one) => Ok(one),
            ref others => Err(format!("{others:?}")),
        })
        .await
    }
}

fn flags(setup: &AgentSetup<'_>, folder: &Path, admin: u16, status: u16) -> String {
    format!(
        "proxy {} --ip 127.0.0.1 --id client-1.outside --domain outside.svc.cluster.local \
         --serviceCluster client --discoveryAddress {} --configPath {} --binaryPath {} --proxyAdminPort {admin} \
         --statusPort {status} --concurrency 1 --controlPlaneAuthPolicy NONE",
        setup.role,
        setup.discovery,
        folder.join("proxy").display(),
        setup.binary.display(),
    )
}

fn config(setup: &AgentSetup<'_>, folder: &Path, admin: u16, status: u16) -> String {
    format!(
        "discoveryAddress: {}\nconfigPath: {}\nbinaryPath: {}\nproxyAdminPort: {admin}\nstatusPort: {status}\n\
         concurrency: 1\ncontrolPlaneAuthPolicy: NONE\n",
        setup.discovery,
        folder.join("proxy").display(),
        setup.binary.display(),
    )
}

pub(crate) async fn gone(id: u32) {
    wait::until(&format!("the end of process {id}"), async || {
        if is_alive(id) { Err("still running".to_owned()) } else { Ok(()) }
    })
    .await;
}

pub(crate) fn envoy() -> PathBuf {
    servers::binary("envoy")
}

/// A shell script in place of Envoy.
pub(crate) fn stub(folder: &Path, script: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("stub");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A control plane with the service `cart.shop` on this port, served by the backend.
pub(crate) async fn discovery(port: u16, backend: &HttpBackend) -> DiscoveryProcess {
    discovery_with(port, backend, Vec::new()).await
}

/// A control plane with further arguments.
pub(crate) async fn discovery_with(port: u16, backend: &HttpBackend, args: Vec<String>) -> DiscoveryProcess {
    discovery_of_mesh(port, backend, args, MESH).await
}

/// A control plane with further arguments and this mesh config.
pub(crate) async fn discovery_of_mesh(
    port: u16,
    backend: &HttpBackend,
    args: Vec<String>,
    mesh: &str,
) -> DiscoveryProcess {
    let entry = format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: cart, namespace: shop}}\n\
         spec:\n  hosts: [cart.shop.svc.cluster.local]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
         ports: [{{name: http, number: {port}, protocol: HTTP}}]\n  \
         endpoints:\n  - {{address: 127.0.0.1, ports: {{http: {}}}}}\n",
        backend.port()
    );
    let setup = DiscoveryOptions {
        files: vec![("cart.yaml".to_owned(), entry)],
        mesh: mesh.to_owned(),
        args,
        ..DiscoveryOptions::default()
    };
    let binary = programs::binary("discovery", "pilot-discovery");
    DiscoveryProcess::start(&binary.to_string_lossy(), setup).await
}

/// Sends a request to `cart.shop` through the sidecar.
pub(crate) async fn get(port: u16) -> Result<client::Reply, ReplyError> {
    client::get((Ipv4Addr::LOCALHOST, port).into(), &format!("cart.shop.svc.cluster.local:{port}"), "/").await
}

/// Waits until the backend responds through the sidecar.
pub(crate) async fn answered(port: u16) {
    wait::until("an answer of cart", async || {
        let reply = get(port).await?;
        if reply.status.is_success() { Ok(()) } else { Err(reply.status.to_string()) }
    })
    .await;
}
