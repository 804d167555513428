//! `pilotctl demo`: runs the shop of `samples/shop` with real Envoys and toy backends until Ctrl-C.

mod backend;
mod envoy;
mod identity;
mod process;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

pub(crate) use envoy::find as find_envoy;
use identity::TokenIssuer;
use process::DemoProcess;

/// Address of the shop for clients: the sidecar of `front`.
const SHOP: (Ipv4Addr, u16) = (Ipv4Addr::new(127, 0, 80, 1), 18080);

/// The workloads as `samples/shop/config` describes them, in the order of their addresses.
const WORKLOADS: &[DemoWorkload] = &[
    DemoWorkload { app: "front", version: "v1", calls: &["catalog", "cart", "reviews"] },
    DemoWorkload { app: "catalog", version: "v1", calls: &[] },
    DemoWorkload { app: "cart", version: "v1", calls: &[] },
    DemoWorkload { app: "reviews", version: "v1", calls: &[] },
    DemoWorkload { app: "reviews", version: "v2", calls: &[] },
];

#[derive(Args)]
pub(crate) struct DemoOptions {
    /// The Envoy binary; default: $PILOTAGE_ENVOY, the cache folder, the PATH
    #[arg(long)]
    envoy: Option<PathBuf>,
    /// The pilot-discovery binary; default: next to this program
    #[arg(long)]
    discovery: Option<PathBuf>,
    /// The pilot-agent binary; default: next to this program
    #[arg(long)]
    agent: Option<PathBuf>,
    /// The folder with the shop's files
    #[arg(long, default_value = "samples/shop")]
    shop: PathBuf,
    /// Exit after the first response instead of waiting for Ctrl-C
    #[arg(long)]
    once: bool,
}

/// One workload of the shop.
struct DemoWorkload {
    app: &'static str,
    version: &'static str,
    calls: &'static [&'static str],
}

impl DemoWorkload {
    fn name(&self) -> String {
        format!("{}-{}", self.app, self.version)
    }
}

/// The programs that the shop runs.
struct Programs {
    envoy: PathBuf,
    discovery: PathBuf,
    agent: PathBuf,
}

impl Programs {
    fn find(options: &DemoOptions) -> Result<Programs> {
        let this = std::env::current_exe().context("could not find this program")?;
        let binary = |given: &Option<PathBuf>, name: &str| match given {
            Some(path) => path.clone(),
            None => this.with_file_name(name),
        };
        // Each agent runs in a separate folder.
        let absolute =
            |path: PathBuf| path.canonicalize().with_context(|| format!("could not find {}", path.display()));
        Ok(Programs {
            envoy: absolute(envoy::find(options.envoy.as_deref())?)?,
            discovery: absolute(binary(&options.discovery, "pilot-discovery"))?,
            agent: absolute(binary(&options.agent, "pilot-agent"))?,
        })
    }
}

/// Starts everything, waits for the first response, and stops everything on return.
pub(crate) async fn run(options: DemoOptions) -> Result<()> {
    let programs = Programs::find(&options)?;
    if !options.shop.join("config").is_dir() {
        bail!("could not find the shop at {}: run from the project's folder or give --shop", options.shop.display());
    }
    let folder = tempfile::tempdir().context("could not make a folder for logs")?;
    for (index, workload) in WORKLOADS.iter().enumerate() {
        backend::start(workload, index as u8 + 1).await?;
    }
    let secure = free_port().await?;
    let http = free_port().await?;
    let issuer = TokenIssuer::new(folder.path())?;
    let mut processes =
        vec![start_discovery(&programs.discovery, &options.shop, folder.path(), &issuer, secure, http)?];
    wait_for("pilot-discovery", &mut processes, async || backend::get(local(http), "/ready", "pilot", &[]).await)
        .await?;
    let root = folder.path().join("ca/root-cert.pem");
    let root = wait_for("the certificate authority", &mut processes, async || {
        std::fs::read_to_string(&root).with_context(|| format!("could not read {}", root.display()))
    })
    .await?;
    for (index, workload) in WORKLOADS.iter().enumerate() {
        issuer.prepare(workload, &folder.path().join(workload.name()), &root)?;
        let ports = envoy::EnvoyPorts { xds: secure, admin: free_port().await?, status: free_port().await? };
        processes.push(envoy::start(&programs, workload, index as u8 + 1, ports, folder.path())?);
    }
    let answer =
        wait_for("the shop", &mut processes, async || backend::get(SHOP.into(), "/", "shop", &[]).await).await?;
    print_summary(&options.shop, http, folder.path(), &answer);
    if options.once {
        return Ok(());
    }
    tokio::signal::ctrl_c().await.context("could not wait for Ctrl-C")?;
    println!("\nstopping");
    Ok(())
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

async fn free_port() -> Result<u16> {
    let listener = tokio::net::TcpListener::bind(local(0)).await.context("could not find a free port")?;
    Ok(listener.local_addr()?.port())
}

fn start_discovery(
    binary: &Path,
    shop: &Path,
    logs: &Path,
    issuer: &TokenIssuer,
    secure: u16,
    http: u16,
) -> Result<DemoProcess> {
    let args = [
        "discovery".to_owned(),
        "--registries=".to_owned(),
        format!("--configDir={}", shop.join("config").display()),
        format!("--meshConfig={}", shop.join("mesh.yaml").display()),
        format!("--caDir={}", logs.join("ca").display()),
        "--grpcAddr=".to_owned(),
        format!("--httpAddr=127.0.0.1:{http}"),
        "--monitoringAddr=".to_owned(),
        format!("--secureGRPCAddr=127.0.0.1:{secure}"),
        "--httpsAddr=".to_owned(),
    ];
    // Agents connect to this address, so the server's certificate must have it.
    let env = [("JWT_RULE", &*issuer.rule()), ("ISTIOD_CUSTOM_HOST", "127.0.0.1")];
    DemoProcess::start("pilot-discovery", binary, &args, &env, Path::new("."), logs)
}

/// Repeats `attempt` until it succeeds. Fails when a process exits or after 30 s.
async fn wait_for(
    what: &str,
    processes: &mut [DemoProcess],
    mut attempt: impl AsyncFnMut() -> Result<String>,
) -> Result<String> {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        match attempt().await {
            Ok(answer) => return Ok(answer),
            Err(error) if tokio::time::Instant::now() > deadline => {
                return Err(error.context(format!("{what} did not respond within 30 s")));
            }
            Err(_) => {}
        }
        processes.iter_mut().try_for_each(DemoProcess::check)?;
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

fn print_summary(shop: &Path, http: u16, logs: &Path, answer: &str) {
    let (ip, port) = SHOP;
    println!("The shop is open at http://{ip}:{port}/ and responds:\n");
    answer.lines().for_each(|line| println!("    {line}"));
    println!("\nOne response in ten comes from reviews v2:\n");
    println!("    for i in $(seq 50); do curl -s http://{ip}:{port}/ | grep reviews; done | sort | uniq -c\n");
    println!("Sidecars speak mutual TLS with certificates of the control plane. Only the front accepts plain text:\n");
    println!("    curl http://127.0.80.2:18080/     # the catalog: refused\n");
    println!("Always v2, by a header:\n\n    curl -H 'x-canary: yes' http://{ip}:{port}/\n");
    println!("Change the weights in {} and try again.", shop.join("config/canary.yaml").display());
    println!("Control plane: http://127.0.0.1:{http}/debug   Logs: {}   Ctrl-C ends it.", logs.display());
}
