//! pilot-discovery on registries, and one Envoy that calls out for a client.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};
use testkit::backend::HttpBackend;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::envoy::{Bootstrap, Envoy, XdsTransport};
use testkit::{client, ports, wait};

/// Nothing hands out certificates here, so sidecars talk plain text.
const MESH: &str = "enableAutoMtls: false\n";

pub(crate) struct Stage {
    pub(crate) discovery: DiscoveryProcess,
    pub(crate) envoy: Envoy,
}

impl Stage {
    pub(crate) async fn start(args: &[String], documents: &str) -> Stage {
        Stage::start_on("", args, documents).await
    }

    /// The same with further lines of mesh config.
    pub(crate) async fn start_on(mesh: &str, args: &[String], documents: &str) -> Stage {
        let files = vec![("mesh.yaml".to_owned(), documents.to_owned())];
        let env = vec![("ENABLE_XDS_API_GENERATOR_AUTH".to_owned(), "false".to_owned())];
        let setup = DiscoveryOptions {
            files,
            mesh: format!("{MESH}{mesh}"),
            args: args.to_vec(),
            env,
            ..DiscoveryOptions::default()
        };
        let discovery = DiscoveryProcess::start(env!("CARGO_BIN_EXE_pilot-discovery"), setup).await;
        let bootstrap = Bootstrap::sidecar(
            discovery.grpc().port(),
            XdsTransport::Delta,
            "client",
            "outside",
            json!({"app": "client"}),
        );
        let mut envoy = Envoy::start(&bootstrap).await;
        envoy.ready().await;
        Stage { discovery, envoy }
    }

    /// Waits until a host is answered by exactly these backends, on this port; by nobody where there are none.
    pub(crate) async fn answered_by(&self, host: &str, port: u16, backends: &[&str]) {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let wanted: BTreeSet<String> = backends.iter().map(|name| (*name).to_owned()).collect();
        wait::until(&format!("answers of {backends:?}"), async || {
            let mut found = BTreeSet::new();
            for _ in 0..backends.len().max(1) * 4 {
                let reply = client::get(address, host, "/").await?;
                match (reply.status.as_u16(), reply.backend()) {
                    (200, backend) => _ = found.insert(backend.to_owned()),
                    (503, _) => {}
                    (status, _) => return Err(format!("{status} {}", reply.body)),
                }
            }
            if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    }

    /// How a source is doing, as the debug page tells it.
    pub(crate) async fn source(&self, name: &str) -> Result<Value, String> {
        let reply = client::get(self.discovery.http(), "discovery", "/debug/registryz?health").await?;
        let all = reply.json();
        let found = all.as_array().and_then(|all| all.iter().find(|source| source["source"] == name).cloned());
        found.ok_or(format!("no {name} in {all}"))
    }

    /// Addresses of a host's endpoints, as the debug page tells them.
    pub(crate) async fn endpoints_of(&self, host: &str) -> Result<BTreeSet<String>, String> {
        let all = client::get(self.discovery.http(), "discovery", "/debug/endpointz").await?.json();
        let text = all[host].to_string();
        let addresses = text.split('"').filter(|part| part.parse::<Ipv4Addr>().is_ok());
        Ok(addresses.map(str::to_owned).collect())
    }

    pub(crate) async fn until_state(&self, source: &str, state: &str) {
        wait::until(&format!("{source} {state}"), async || {
            let found = self.source(source).await?;
            if found["state"] == state { Ok(()) } else { Err(found.to_string()) }
        })
        .await;
    }
}

/// Backends that share a port: the registries' service port is the port of its instances, and Envoy listens on it
/// for the client, on another address of this machine.
pub(crate) async fn backends<const N: usize>(names: [&str; N]) -> (u16, Vec<HttpBackend>) {
    let port = ports::free();
    let mut all = Vec::new();
    for (name, last) in names.into_iter().zip(2..) {
        all.push(HttpBackend::start_at(name, (Ipv4Addr::new(127, 0, 0, last), port).into()).await);
    }
    (port, all)
}
