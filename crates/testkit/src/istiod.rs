//! istiod, upstream's control plane, as a child process on a real API server. `cargo xtask setup istiod` builds it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use crate::kubernetes::ApiServer;
use crate::process::Process;
use crate::{client, discovery, ports, servers, wait};

/// Start-up timeout on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Turns off webhooks, deployments and leader election.
const ALONE: &[(&str, &str)] = &[
    ("ENABLE_LEADER_ELECTION", "false"),
    ("INJECT_ENABLED", "false"),
    ("VALIDATION_WEBHOOK_CONFIG_NAME", ""),
    ("PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER", "false"),
];

pub struct Istiod {
    process: Process,
    args: Vec<String>,
    env: Vec<(String, String)>,
    grpc: SocketAddr,
    http: SocketAddr,
    monitoring: SocketAddr,
}

impl Istiod {
    /// Starts it with files of MeshConfig and MeshNetworks and waits until it is ready.
    pub async fn start(api_server: &ApiServer, files: (&Path, &Path), env: &[(String, String)]) -> Istiod {
        Self::start_with(api_server, files, env, &[]).await
    }

    /// The same with further arguments, which take precedence over those of `start`.
    pub async fn start_with(
        api_server: &ApiServer,
        files: (&Path, &Path),
        env: &[(String, String)],
        further: &[String],
    ) -> Istiod {
        let [grpc, http, monitoring] = [(); 3].map(|()| SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free())));
        let mut args = vec![
            "discovery".to_owned(),
            "--registries=Kubernetes".to_owned(),
            format!("--kubeconfig={}", api_server.kubeconfig().display()),
            format!("--meshConfig={}", files.0.display()),
            format!("--networksConfig={}", files.1.display()),
        ];
        args.extend(discovery::addresses(grpc, http, monitoring));
        args.extend(further.iter().cloned());
        let alone = ALONE.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let env: Vec<(String, String)> = env.iter().cloned().chain(alone).collect();
        let process = Process::start("istiod", &servers::binary("istiod"), &args, &env);
        let mut istiod = Istiod { process, args, env, grpc, http, monitoring };
        istiod.ready().await;
        istiod
    }

    /// Kills it and restarts it with the same arguments and ports.
    pub async fn restart(&mut self) {
        self.process.kill();
        self.process = Process::start("istiod", &servers::binary("istiod"), &self.args, &self.env);
        self.ready().await;
    }

    async fn ready(&mut self) {
        wait::until_within(PATIENCE, "a ready istiod", async || {
            self.process.check_alive();
            let reply = client::get(self.http, "istiod", "/ready").await?;
            if reply.status.is_success() { Ok(()) } else { Err(reply.status.to_string()) }
        })
        .await;
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

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The process alone, for measurements.
    pub fn into_process(self) -> Process {
        self.process
    }
}
