//! pilot-discovery with registries, and the sidecar of one client.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};
use testkit::backend::HttpBackend;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::envoy::{Bootstrap, Envoy, XdsTransport};
use testkit::{client, ports, wait};

/// There is no SDS server here, so sidecars use plain text.
const MESH: &str = "enableAutoMtls: false\n";

pub(crate) struct MeshFixture {
    pub(crate) discovery: DiscoveryProcess,
    pub(crate) envoy: Envoy,
}

impl MeshFixture {
    pub(crate) async fn start(args: &[String], documents: &str) -> MeshFixture {
        MeshFixture::start_on("", args, documents).await
    }

    /// The same with additional mesh config.
    pub(crate) async fn start_on(mesh: &str, args: &[String], documents: &str) -> MeshFixture {
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
        MeshFixture { discovery, envoy }
    }

    /// Waits until requests to a host on this port reach exactly these backends; an empty list means none.
    pub(crate) async fn answered_by(&self, host: &str, port: u16, backends: &[&str]) {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let wanted: BTreeSet<String> = backends.iter().map(|name| (*name).to_owned()).collect();
        wait::until(&format!("responses of {backends:?}"), async || {
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

    /// Health of a source, from the debug page.
    pub(crate) async fn source(&self, name: &str) -> Result<Value, String> {
        let reply = client::get(self.discovery.http(), "discovery", "/debug/registryz?health").await?;
        let all = reply.json();
        let found = all.as_array().and_then(|all| all.iter().find(|source| source["source"] == name).cloned());
        found.ok_or(format!("no {name} in {all}"))
    }

    /// Addresses of a host's endpoints, from the debug page.
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

/// Backends that share a port on different loopback addresses: the service port of a registry is the port of its
/// instances, and Envoy listens on the same port of another address.
pub(crate) async fn backends<const N: usize>(names: [&str; N]) -> (u16, Vec<HttpBackend>) {
    let port = ports::free();
    let mut all = Vec::new();
    for (name, last) in names.into_iter().zip(2..) {
        all.push(HttpBackend::start_at(name, (Ipv4Addr::new(127, 0, 0, last), port).into()).await);
    }
    (port, all)
}
