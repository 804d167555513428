//! A real Envoy for a test: started from a bootstrap, inspected through its admin port, stopped on drop.

mod admin;
mod bootstrap;

pub use admin::Admin;
pub use bootstrap::{Bootstrap, XdsTransport};

use std::fs;
use std::net::SocketAddr;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::Process;
use crate::{servers, wait};

/// Runs the same tests over state-of-the-world and delta xDS: declares modules `sotw` and `delta` that call each named
/// function with the `XdsTransport`.
#[macro_export]
macro_rules! over_both {
    ($($name:ident),* $(,)?) => {
        mod sotw {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::envoy::XdsTransport::Sotw).await;
            })*
        }

        mod delta {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::envoy::XdsTransport::Delta).await;
            })*
        }
    };
}

pub struct Envoy {
    process: Process,
    admin: Admin,
    _folder: TempDir,
}

impl Envoy {
    /// Starts Envoy and waits for its admin port, but not for its first configuration.
    pub async fn start(bootstrap: &Bootstrap) -> Envoy {
        Self::start_with(bootstrap.json()).await
    }

    /// Starts with any bootstrap; the admin address is filled in.
    pub async fn start_with(mut bootstrap: Value) -> Envoy {
        bootstrap["admin"] = json!({"address": bootstrap::address("127.0.0.1", 0)});
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        let (config, admin) = (folder.path().join("bootstrap.json"), folder.path().join("admin"));
        fs::write(&config, bootstrap.to_string()).unwrap_or_else(|e| panic!("could not write the bootstrap: {e}"));
        // Without hot restart there is no shared memory that could stay behind or clash.
        let args = [
            "--config-path",
            &config.to_string_lossy(),
            "--admin-address-path",
            &admin.to_string_lossy(),
            "--disable-hot-restart",
            "--concurrency",
            "1",
            "--log-level",
            "warning",
        ];
        let mut process = Process::start("envoy", &servers::binary("envoy"), &args, &[]);
        let address = wait::until("envoy's admin port", async || {
            process.check_alive();
            let text = fs::read_to_string(&admin).map_err(|e| e.to_string())?;
            text.trim().parse::<SocketAddr>().map_err(|e| e.to_string())
        })
        .await;
        Envoy { process, admin: Admin::new(address), _folder: folder }
    }

    pub fn admin(&self) -> &Admin {
        &self.admin
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Waits until it is live: its initial configuration is loaded.
    pub async fn ready(&mut self) {
        wait::until("a ready envoy", async || {
            self.process.check_alive();
            match self.admin.get("/ready").await {
                Ok(text) if text.starts_with("LIVE") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// Waits for a listener of this name and returns its address.
    pub async fn listener(&mut self, name: &str) -> SocketAddr {
        wait::until(&format!("listener {name}"), async || {
            self.process.check_alive();
            let listeners = self.admin.json("/listeners?format=json").await?;
            let all = listeners["listener_statuses"].as_array().cloned().unwrap_or_default();
            let found = all.iter().find(|l| l["name"] == name).ok_or(format!("only {listeners}"))?;
            let address = &found["local_address"]["socket_address"];
            let (ip, port) = (address["address"].as_str().unwrap_or_default(), &address["port_value"]);
            format!("{ip}:{port}").parse().map_err(|e| format!("{address}: {e}"))
        })
        .await
    }
}
