//! A server for these tests, started on free ports that are read from its log.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use testkit::client::{self, Reply};
use testkit::process::Process;
use testkit::wait;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_pilot-discovery");

/// One service inside the mesh and one outside.
pub(crate) const SHOP: &str = "\
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.shop.example]
  addresses: [10.9.0.1]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.1}, {address: 10.0.0.2}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: pay, namespace: shop}
spec:
  hosts: [pay.example]
  location: MESH_EXTERNAL
  resolution: DNS
  ports: [{number: 443, name: tls, protocol: TLS}]
";

pub(crate) struct Started {
    pub(crate) process: Process,
    pub(crate) folder: TempDir,
}

/// The folder, with an empty config folder in it.
pub(crate) fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("config")).unwrap();
    folder
}

impl Started {
    /// Starts the server with the shop's files and additional arguments.
    pub(crate) fn new(args: &[&str]) -> Started {
        let folder = folder();
        std::fs::write(folder.path().join("config/shop.yaml"), SHOP).unwrap();
        Started::on(folder, args)
    }

    /// Starts the server on a folder, with free ports and without TLS.
    pub(crate) fn on(folder: TempDir, args: &[&str]) -> Started {
        Started::with(folder, args, &[])
    }

    /// The same with environment variables.
    pub(crate) fn with(folder: TempDir, args: &[&str], env: &[(&str, &str)]) -> Started {
        let config = format!("--configDir={}", folder.path().join("config").display());
        let mesh = format!("--meshConfig={}", folder.path().join("mesh.yaml").display());
        let networks = format!("--networksConfig={}", folder.path().join("networks.yaml").display());
        let ports =
            ["--grpcAddr=127.0.0.1:0", "--httpAddr=127.0.0.1:0", "--monitoringAddr=127.0.0.1:0", "--ctrlz_port=0"];
        let off = ["--secureGRPCAddr=", "--httpsAddr="];
        let mut line = vec!["discovery", &config, &mesh, &networks];
        line.extend(ports.iter().chain(&off).chain(args));
        let env: Vec<(String, String)> = env.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let process = Process::start("pilot-discovery", Path::new(BINARY), &line, &env);
        Started { process, folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The bound address of a port, once it is logged.
    pub(crate) async fn port(&mut self, name: &str) -> SocketAddr {
        wait::until(&format!("the address of {name}"), async || {
            self.process.check_alive();
            logged_address(&self.process.output(), name).ok_or_else(|| self.process.output())
        })
        .await
    }

    /// GET on port `http`.
    pub(crate) async fn get(&mut self, path: &str) -> Reply {
        let address = self.port("http").await;
        client::get(address, "discovery", path).await.unwrap()
    }

    /// Waits until it is ready.
    pub(crate) async fn ready(&mut self) {
        let address = self.port("http").await;
        wait::until("a ready server", async || {
            let reply = client::get(address, "discovery", "/ready").await?;
            if reply.status == 200 { Ok(()) } else { Err(reply.body) }
        })
        .await;
    }

    /// Waits for a text in its log.
    pub(crate) async fn says(&mut self, text: &str) {
        wait::until(&format!("a log line with {text:?}"), async || {
            let output = self.process.output();
            if output.contains(text) { Ok(()) } else { Err(output) }
        })
        .await;
    }
}

fn logged_address(log: &str, port: &str) -> Option<SocketAddr> {
    let line = log.lines().find(|line| line.contains(&format!("listening port=\"{port}\"")))?;
    line.split("address=").nth(1)?.trim().parse().ok()
}
