//! istiod as a process of its own, on a real API server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use testkit::kubernetes::ApiServer;
use testkit::process::Process;
use testkit::{client, ports, servers, wait};

/// It lists everything first, and the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(180);

/// What keeps it from writing certificates, webhooks and deployments, and from waiting for others.
const ALONE: &[(&str, &str)] = &[
    ("ENABLE_LEADER_ELECTION", "false"),
    ("INJECT_ENABLED", "false"),
    ("VALIDATION_WEBHOOK_CONFIG_NAME", ""),
    ("PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER", "false"),
];

/// The guard of a running istiod.
pub(crate) struct Peer {
    _process: Process,
    grpc: SocketAddr,
}

impl Peer {
    /// Starts it and waits until it says that it is ready.
    pub(crate) async fn start(api_server: &ApiServer, mesh: (&Path, &Path), env: &[(String, String)]) -> Peer {
        let [grpc, http, monitoring] = [(); 3].map(|()| SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free())));
        let args = [
            "discovery".to_owned(),
            "--registries=Kubernetes".to_owned(),
            format!("--kubeconfig={}", api_server.kubeconfig().display()),
            format!("--meshConfig={}", mesh.0.display()),
            format!("--networksConfig={}", mesh.1.display()),
            format!("--grpcAddr={grpc}"),
            format!("--httpAddr={http}"),
            format!("--monitoringAddr={monitoring}"),
            "--secureGRPCAddr=".to_owned(),
            "--httpsAddr=".to_owned(),
            "--ctrlz_port=0".to_owned(),
        ];
        let alone = ALONE.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let env: Vec<(String, String)> = env.iter().cloned().chain(alone).collect();
        let mut process = Process::start("istiod", &servers::binary("istiod"), &args, &env);
        wait::until_within(PATIENCE, "a ready istiod", async || {
            process.check_alive();
            let reply = client::get(http, "istiod", "/ready").await?;
            if reply.status.is_success() { Ok(()) } else { Err(reply.status.to_string()) }
        })
        .await;
        Peer { _process: process, grpc }
    }

    pub(crate) fn grpc(&self) -> SocketAddr {
        self.grpc
    }
}
