//! Starts the demo: backends, registry, control plane, sidecars; waits for the first response.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use super::envoy::EnvoyPorts;
use super::identity::TokenIssuer;
use super::ports::{free_ports, local};
use super::process::{DemoProcess, ProcessStarter};
use super::programs::{Programs, check_envoy};
use super::registry::RegistryServer;
use super::shop::DemoWorkload;
use super::{DemoOptions, backend, envoy};
use crate::control_plane::ControlPlaneOptions;

/// A part that does not respond within this time ends the demo.
const LIMIT: Duration = Duration::from_secs(30);
/// How often the demo says what it waits for.
const REPORT: Duration = Duration::from_secs(2);

/// The running demo.
pub(super) struct Demo {
    /// The control plane's monitoring port.
    pub(super) server: ControlPlaneOptions,
    processes: Vec<DemoProcess>,
    shop: SocketAddr,
    answer: String,
    http: u16,
    logs: PathBuf,
    sidecars: Vec<(String, EnvoyPorts)>,
    registry: Option<RegistryServer>,
}

/// Fails if the demo cannot start: Envoy does not run, or an address is taken.
pub(super) async fn check(programs: &Programs, workloads: &[DemoWorkload]) -> Result<()> {
    for (address, user) in workloads.iter().flat_map(DemoWorkload::addresses) {
        if let Err(error) = TcpListener::bind(address) {
            let port = address.port();
            bail!("could not listen on {address} for {user}: {error}; `ss -ltnp sport = :{port}` shows who does");
        }
    }
    check_envoy(programs).await
}

impl Demo {
    pub(super) async fn start(
        options: &DemoOptions,
        programs: &Programs,
        workloads: &[DemoWorkload],
        folder: &Path,
    ) -> Result<Demo> {
        for workload in workloads {
            backend::start(workload).await?;
        }
        let starter = ProcessStarter { agent: &programs.agent, logs: folder };
        let [secure, http, monitoring] = free_ports()?;
        let issuer = TokenIssuer::new(folder)?;
        let mut demo = Demo {
            server: ControlPlaneOptions::at(&format!("127.0.0.1:{monitoring}")),
            processes: Vec::new(),
            shop: workloads.first().context("the shop has no workloads")?.inbound,
            answer: String::new(),
            http,
            logs: folder.to_owned(),
            sidecars: Vec::new(),
            registry: RegistryServer::new(options.registry)?,
        };
        if let Some(registry) = demo.registry.take() {
            demo.processes.push(registry.start(&starter)?);
            demo.wait_for(registry.name(), async |_| registry.ready().await).await?;
            registry.register(workloads).await?;
            demo.registry = Some(registry);
        }
        let args = demo.discovery_args(&options.shop, secure)?;
        // Agents connect to this address, so the server's certificate must have it.
        let env = [("JWT_RULE", &*issuer.rule()), ("ISTIOD_CUSTOM_HOST", "127.0.0.1")];
        demo.processes.push(starter.start("pilot-discovery", &programs.discovery, &args, &env, Path::new("."))?);
        demo.wait_for("pilot-discovery", async |_| backend::get(local(http), "/ready", "pilot", &[]).await).await?;
        let root = folder.join("ca/root-cert.pem");
        let read = async |_: &Demo| {
            std::fs::read_to_string(&root).with_context(|| format!("could not read {}", root.display()))
        };
        let root = demo.wait_for("the certificate authority", read).await?;
        for workload in workloads {
            issuer.prepare(workload, &folder.join(workload.name()), &root)?;
            let [admin, status] = free_ports()?;
            let ports = EnvoyPorts { xds: secure, admin, status };
            demo.processes.push(envoy::start(&starter, programs, workload, ports)?);
            demo.sidecars.push((workload.name(), ports));
        }
        demo.answer = demo.wait_for("the shop", Demo::first_answer).await?;
        Ok(demo)
    }

    fn discovery_args(&self, shop: &Path, secure: u16) -> Result<Vec<String>> {
        let config = shop.join("config");
        let mut args = vec![
            "discovery".to_owned(),
            "--registries=".to_owned(),
            format!("--meshConfig={}", shop.join("mesh.yaml").display()),
            format!("--caDir={}", self.logs.join("ca").display()),
            "--grpcAddr=".to_owned(),
            format!("--httpAddr=127.0.0.1:{}", self.http),
            format!("--monitoringAddr={}", self.server.server),
            format!("--secureGRPCAddr=127.0.0.1:{secure}"),
            "--httpsAddr=".to_owned(),
            "--ctrlz_port=0".to_owned(),
        ];
        match &self.registry {
            None => args.push(format!("--configDir={}", config.display())),
            Some(registry) => {
                args.push(format!("--configDir={}", registry.config_without_services(&config, &self.logs)?.display()));
                args.push(format!("--registryConfig={}", registry.write_options(&self.logs)?.display()));
            }
        }
        Ok(args)
    }

    /// The shop's response. While there is none, the error names the sidecar that is not ready.
    async fn first_answer(&self) -> Result<String> {
        match backend::get(self.shop, "/", "shop", &[]).await {
            Ok(answer) => Ok(answer),
            Err(error) => {
                if let Some(rejection) = self.rejection().await {
                    return Err(rejection);
                }
                Err(error.context(self.unready().await))
            }
        }
    }

    /// A response that an Envoy rejected.
    async fn rejection(&self) -> Option<anyhow::Error> {
        let page = self.server.page("/debug/snapshotz").await.ok()?;
        page["proxies"].as_array()?.iter().find_map(|proxy| {
            let rejected = Some(&proxy["rejected"]).filter(|rejected| !rejected.is_null())?;
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (proxy, kind, reason) = (text(&proxy["proxy"]), text(&rejected["type"]), text(&rejected["message"]));
            Some(anyhow!(Rejected(format!("the Envoy of {proxy} rejected its {kind}: {reason}"))))
        })
    }

    /// What the first sidecar that is not ready waits for.
    async fn unready(&self) -> String {
        for (name, ports) in &self.sidecars {
            if let Some(reason) = backend::refusal(local(ports.status), "/healthz/ready").await {
                return format!("{name} is not ready: {}", reason.lines().next().unwrap_or_default());
            }
        }
        "all sidecars are ready".to_owned()
    }

    /// Fails with the reason if a process has ended.
    pub(super) fn check_processes(&mut self) -> Result<()> {
        self.processes.iter_mut().try_for_each(DemoProcess::check)
    }

    /// Repeats `attempt` until it succeeds, and prints what it waits for. Fails when a process exits, on a rejection, or
    /// after 30 s.
    async fn wait_for(&mut self, what: &str, attempt: impl AsyncFn(&Demo) -> Result<String>) -> Result<String> {
        eprintln!("waiting for {what}");
        let begun = Instant::now();
        let mut reported = begun;
        loop {
            let error = match attempt(self).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            self.check_processes()?;
            if error.is::<Rejected>() {
                return Err(error);
            }
            if begun.elapsed() > LIMIT {
                return Err(error.context(format!("{what} did not respond within {} s", LIMIT.as_secs())));
            }
            if reported.elapsed() > REPORT {
                reported = Instant::now();
                eprintln!("still waiting for {what}: {error:#}");
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }

    pub(super) fn print_summary(&self, options: &DemoOptions, took: Duration) {
        let (shop, server, http) = (self.shop, &self.server.server, self.http);
        println!("The shop is open at http://{shop}/ after {:.1} s and responds:\n", took.as_secs_f64());
        self.answer.lines().for_each(|line| println!("    {line}"));
        println!("\nOne response in ten comes from reviews v2:\n");
        println!("    for i in $(seq 50); do curl -s http://{shop}/ | grep reviews; done | sort | uniq -c\n");
        println!("Always v2, by a header:\n\n    curl -H 'x-canary: yes' http://{shop}/\n");
        println!(
            "Sidecars speak mutual TLS with certificates of the control plane. Only the front accepts plain text."
        );
        if let Some(registry) = &self.registry {
            println!("Services are registered in {}.", registry.place());
        }
        println!("\n{:15} debug http://127.0.0.1:{http}/debug   metrics http://{server}/metrics", "control plane");
        for (name, ports) in &self.sidecars {
            let EnvoyPorts { admin, status, .. } = ports;
            println!("{name:15} admin http://127.0.0.1:{admin}/   status http://127.0.0.1:{status}/healthz/ready");
        }
        println!("{:15} {}", "logs", self.logs.display());
        println!("\nTry `pilotctl check --server {server}` and `pilotctl ps --server {server}`.");
        let canary = options.shop.join("config/canary.yaml");
        println!("Change the weights in {} and watch it arrive here. Ctrl-C ends it.", canary.display());
    }
}

/// An Envoy rejected its configuration.
#[derive(Debug)]
struct Rejected(String);

impl std::fmt::Display for Rejected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Rejected {}
