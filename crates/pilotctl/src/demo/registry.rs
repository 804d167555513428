//! `--registry consul` and `eureka`: a real server in which the shop's workloads are registered, instead of the
//! ServiceEntries of the shop's files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::ValueEnum;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};

use super::backend;
use super::ports::{free_ports, local};
use super::process::{DemoProcess, ProcessStarter};
use super::programs::find_server;
use super::shop::DemoWorkload;

/// The file with the shop's ServiceEntries.
const SERVICES: &str = "services.yaml";

/// Where services are registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DemoRegistry {
    Files,
    Consul,
    Eureka,
}

/// A registry that the demo runs.
pub(super) struct RegistryServer {
    kind: ServerKind,
    program: PathBuf,
    port: u16,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ServerKind {
    Consul,
    Eureka,
}

impl RegistryServer {
    /// The server of a registry; `None` if services are in files.
    pub(super) fn new(registry: DemoRegistry) -> Result<Option<RegistryServer>> {
        let (kind, program) = match registry {
            DemoRegistry::Files => return Ok(None),
            DemoRegistry::Consul => (ServerKind::Consul, find_server("consul")?),
            DemoRegistry::Eureka => (ServerKind::Eureka, find_server("eureka.jar")?),
        };
        let [port] = free_ports()?;
        Ok(Some(RegistryServer { kind, program, port }))
    }

    pub(super) fn name(&self) -> &'static str {
        match self.kind {
            ServerKind::Consul => "Consul",
            ServerKind::Eureka => "Eureka",
        }
    }

    /// Where a user can look at it.
    pub(super) fn place(&self) -> String {
        match self.kind {
            ServerKind::Consul => format!("Consul at http://127.0.0.1:{}/v1/catalog/services", self.port),
            ServerKind::Eureka => format!("Eureka at http://127.0.0.1:{}/eureka/apps", self.port),
        }
    }

    pub(super) fn start(&self, starter: &ProcessStarter<'_>) -> Result<DemoProcess> {
        match self.kind {
            ServerKind::Consul => self.start_consul(starter),
            ServerKind::Eureka => self.start_eureka(starter),
        }
    }

    fn start_consul(&self, starter: &ProcessStarter<'_>) -> Result<DemoProcess> {
        let [server, serf] = free_ports()?;
        let line = format!(
            "agent -dev -bind=127.0.0.1 -client=127.0.0.1 -http-port={} -server-port={server} -serf-lan-port={serf} \
             -serf-wan-port=-1 -dns-port=-1 -grpc-port=-1 -grpc-tls-port=-1 -log-level=warn",
            self.port
        );
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        starter.start("consul", &self.program, &args, &[], starter.logs)
    }

    fn start_eureka(&self, starter: &ProcessStarter<'_>) -> Result<DemoProcess> {
        let port = self.port;
        let line = format!(
            "--server.port={port} --server.address=127.0.0.1 --eureka.client.register-with-eureka=false \
             --eureka.client.fetch-registry=false --eureka.instance.hostname=127.0.0.1 \
             --eureka.client.service-url.defaultZone=http://127.0.0.1:{port}/eureka/ \
             --eureka.server.response-cache-update-interval-ms=500"
        );
        let java = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-jar"].map(str::to_owned);
        let mut args: Vec<String> = java.into_iter().collect();
        args.push(self.program.to_string_lossy().into_owned());
        args.extend(line.split_whitespace().map(str::to_owned));
        let java = find_server("java").context("Eureka needs a Java runtime")?;
        starter.start("eureka", &java, &args, &[], starter.logs)
    }

    /// Fails until the server can register services.
    pub(super) async fn ready(&self) -> Result<String> {
        let address = local(self.port);
        match self.kind {
            ServerKind::Consul => {
                let leader = backend::get(address, "/v1/status/leader", "consul", &[]).await?;
                if leader.trim().len() < 3 {
                    bail!("it has no leader yet");
                }
                Ok(leader)
            }
            ServerKind::Eureka => backend::get(address, "/eureka/apps", "eureka", &[]).await,
        }
    }

    pub(super) async fn register(&self, workloads: &[DemoWorkload]) -> Result<()> {
        for workload in workloads {
            let (method, path, body) = match self.kind {
                ServerKind::Consul => consul_request(workload),
                ServerKind::Eureka => eureka_request(workload),
            };
            self.send(method, &path, &body)
                .await
                .with_context(|| format!("could not register {} in {}", workload.name(), self.name()))?;
        }
        Ok(())
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> Result<()> {
        let address = local(self.port);
        let request = Request::builder().method(method).uri(path).header("host", address.to_string());
        let request = request.header("content-type", "application/json").body(Full::<Bytes>::from(body.to_string()))?;
        let response = net::http::exchange(net::http::connect(address).await?, request, 1 << 20).await?;
        if !response.status().is_success() {
            bail!("{}: {}", response.status(), String::from_utf8_lossy(response.body()));
        }
        Ok(())
    }

    /// A folder with links to the shop's files, except those with its ServiceEntries.
    pub(super) fn config_without_services(&self, config: &Path, folder: &Path) -> Result<PathBuf> {
        let links = folder.join("config");
        let link = || {
            fs::create_dir(&links)?;
            for entry in fs::read_dir(config)? {
                let entry = entry?;
                if entry.file_name() != SERVICES {
                    symlink(entry.path().canonicalize()?, links.join(entry.file_name()))?;
                }
            }
            std::io::Result::Ok(())
        };
        link().with_context(|| format!("could not make {}", links.display()))?;
        Ok(links)
    }

    /// Writes the file of `--registryConfig`: the host names, namespace and port that the shop's rules use.
    pub(super) fn write_options(&self, folder: &Path) -> Result<PathBuf> {
        let (kind, url, host) = match self.kind {
            ServerKind::Consul => ("consul", format!("http://127.0.0.1:{}", self.port), "{service}"),
            ServerKind::Eureka => ("eureka", format!("http://127.0.0.1:{}/eureka", self.port), "{name}"),
        };
        let mut options = json!({
            "addresses": [url], "host": format!("{host}.shop.svc.cluster.local"), "namespace": "shop",
            "servicePort": 19080, "trustDomain": "shop.example", "interval": "500ms",
        });
        if self.kind == ServerKind::Eureka {
            options["recheck"] = json!("1s");
        }
        let path = folder.join("registries.yaml");
        fs::write(&path, json!({"registries": [{kind: options}]}).to_string())
            .with_context(|| format!("could not write {}", path.display()))?;
        Ok(path)
    }
}

fn metadata(workload: &DemoWorkload) -> Value {
    json!({"app": workload.app, "version": workload.version, "protocol": "http", "service-account": workload.app})
}

fn consul_request(workload: &DemoWorkload) -> (Method, String, Value) {
    let (ip, port) = (workload.inbound.ip(), workload.inbound.port());
    let body = json!({
        "ID": workload.name(), "Name": workload.app, "Address": ip, "Port": port, "Meta": metadata(workload),
    });
    (Method::PUT, "/v1/agent/service/register".to_owned(), body)
}

fn eureka_request(workload: &DemoWorkload) -> (Method, String, Value) {
    let (ip, port) = (workload.inbound.ip(), workload.inbound.port());
    let body = json!({"instance": {
        "instanceId": workload.name(), "hostName": ip, "app": workload.app, "ipAddr": ip, "status": "UP",
        "vipAddress": workload.app, "port": {"$": port, "@enabled": "true"},
        "securePort": {"$": 443, "@enabled": "false"},
        "dataCenterInfo": {"@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn"},
        // The demo does not renew leases.
        "leaseInfo": {"renewalIntervalInSecs": 3600, "durationInSecs": 86400},
        "metadata": metadata(workload),
    }});
    (Method::POST, format!("/eureka/apps/{}", workload.app), body)
}
