//! One replica of the control plane, with its own links to every source, so that each pair can be cut.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::sources::{MeshSources, SourceKind};
use crate::forwarder::TcpForwarder;
use crate::process::{self, Process};
use crate::{client, discovery, ports, wait};

/// Start-up with all sources on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// A page of a server that is paused or overloaded is not waited for.
const PAGE_LIMIT: Duration = Duration::from_secs(2);

pub(super) struct Replica {
    binary: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    pub(super) grpc: SocketAddr,
    http: SocketAddr,
    pub(super) process: Option<Process>,
    pub(super) kubernetes: Option<TcpForwarder>,
    pub(super) consul: Option<TcpForwarder>,
    pub(super) copilot: TcpForwarder,
}

impl Replica {
    /// Starts a replica on these sources, without waiting until it is ready. `name` distinguishes its files.
    pub(super) async fn start(
        binary: &Path,
        sources: &MeshSources,
        name: &str,
        mut env: Vec<(String, String)>,
        state: Option<PathBuf>,
    ) -> Replica {
        // Gateways over plain text get their certificate too: whether the others do is what is tested.
        env.push(("PILOTAGE_TRUST_PLAINTEXT".to_owned(), "true".to_owned()));
        let kubernetes = match &sources.kubernetes {
            Some(_) => Some(TcpForwarder::start().await),
            None => None,
        };
        let consul = match &sources.consul {
            Some(_) => Some(TcpForwarder::start().await),
            None => None,
        };
        let copilot = TcpForwarder::start().await;
        let [grpc, http, monitoring] = [(); 3].map(|()| SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free())));
        let mut replica = Replica {
            binary: binary.to_owned(),
            args: Vec::new(),
            env,
            grpc,
            http,
            process: None,
            kubernetes,
            consul,
            copilot,
        };
        replica.args = replica.arguments(sources, name);
        replica.args.extend(discovery::addresses(grpc, http, monitoring));
        replica.args.extend(state.map(|folder| format!("--stateDir={}", folder.display())));
        replica.link(sources);
        replica.launch();
        replica
    }

    fn arguments(&self, sources: &MeshSources, name: &str) -> Vec<String> {
        let put = |file: &str, text: &str| {
            let path = sources.folder().join(format!("{name}-{file}"));
            fs::write(&path, text).unwrap_or_else(|e| panic!("could not write {file}: {e}"));
            path.display().to_string()
        };
        let mut registries = vec!["CloudFoundry"];
        let copilot = sources
            .copilot
            .config("200ms", 80)
            .replace(&sources.copilot.address().to_string(), &self.copilot.address().to_string());
        let mut args = vec![
            "discovery".to_owned(),
            format!("--configDir={}", sources.config().display()),
            // The Envoy has no certificates here.
            format!("--meshConfig={}", put("mesh.yaml", "enableAutoMtls: false\n")),
            format!("--cfConfig={}", put("copilot.yaml", &copilot)),
        ];
        if let (Some(link), Some(kubernetes)) = (&self.kubernetes, &sources.kubernetes) {
            registries.push("Kubernetes");
            let text = fs::read_to_string(kubernetes.faulty.kubeconfig())
                .unwrap_or_else(|e| panic!("could not read the kubeconfig: {e}"));
            let text = text.replace(&kubernetes.faulty.address().to_string(), &link.address().to_string());
            args.push(format!("--kubeconfig={}", put("kubeconfig", &text)));
        }
        if let Some(link) = &self.consul {
            let text = format!(
                "registries:\n- name: main\n  consul: {{addresses: ['{}'], interval: 500ms, wait: 10s, timeout: 5s}}\n",
                link.url()
            );
            args.push(format!("--registryConfig={}", put("registries.yaml", &text)));
        }
        args.push(format!("--registries={}", registries.join(",")));
        args
    }

    /// Connects all links again, as after a repair of the network or a restart of a source.
    pub(super) fn link(&self, sources: &MeshSources) {
        if let (Some(link), Some(kubernetes)) = (&self.kubernetes, &sources.kubernetes) {
            link.forward_to(kubernetes.faulty.address());
        }
        if let (Some(link), Some(consul)) = (&self.consul, &sources.consul) {
            link.forward_to(consul.address());
        }
        self.copilot.forward_to(sources.copilot.address());
    }

    /// The link to a source; files have none.
    pub(super) fn link_to(&self, source: SourceKind) -> Option<&TcpForwarder> {
        match source {
            SourceKind::Files => None,
            SourceKind::Kubernetes => self.kubernetes.as_ref(),
            SourceKind::Consul => self.consul.as_ref(),
            SourceKind::Copilot => Some(&self.copilot),
        }
    }

    pub(super) fn launch(&mut self) {
        self.process = Some(Process::start("pilot-discovery", &self.binary, &self.args, &self.env));
    }

    /// Kills it, like a crash.
    pub(super) fn kill(&mut self) {
        self.process = None;
    }

    /// Sends it a signal, given by its name without SIG.
    pub(super) fn signal(&self, name: &str) {
        if let Some(process) = &self.process {
            process::signal(process.id(), name);
        }
    }

    pub(super) async fn ready(&mut self) {
        wait::until_within(PATIENCE, "a ready replica", async || {
            if let Some(process) = &mut self.process {
                process.check_alive();
            }
            let reply = client::get(self.http, "localhost", "/ready").await?;
            if reply.status.is_success() { Ok(()) } else { Err(reply.body) }
        })
        .await;
    }

    /// Panics if the process has ended by itself.
    pub(super) fn check_alive(&mut self) {
        if let Some(process) = &mut self.process {
            process.check_alive();
        }
    }

    /// The page about the state of proxies; `None` if it does not answer soon.
    pub(super) async fn sync_page(&self) -> Option<Value> {
        serde_json::from_str(&self.page("/debug/syncz").await?).ok()
    }

    /// A page of the server; `None` if it does not answer soon.
    pub(super) async fn page(&self, path: &str) -> Option<String> {
        let page = client::get(self.http, "localhost", path);
        let reply = tokio::time::timeout(PAGE_LIMIT, page).await.ok()?.ok()?;
        reply.status.is_success().then_some(reply.body)
    }
}
