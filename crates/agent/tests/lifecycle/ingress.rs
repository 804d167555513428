//! A Pilot 0.8 ingress gateway with its own certificate pair, which Gateways name by its paths.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use testkit::backend::HttpBackend;
use testkit::certificates::Authority;
use testkit::discovery::DiscoveryProcess;
use testkit::tls::TlsClient;
use testkit::{ports, servers, wait};

use crate::fixture::{Agent, AgentSetup, discovery, envoy};

const HOST: &str = "shop.example";

/// Writes a pair of a new authority. Returns the authority.
fn write_pair(folder: &Path) -> Authority {
    let authority = Authority::new();
    let pair = authority.host(HOST);
    // The key first: a chain without its key cannot be used.
    fs::write(folder.join("tls.key"), &pair.key).unwrap();
    fs::write(folder.join("tls.crt"), &pair.chain).unwrap();
    authority
}

/// A Gateway that serves the pair, and a route to `cart.shop`.
fn expose(control_plane: &DiscoveryProcess, port: u16, folder: &Path, service: u16) {
    let folder = folder.display();
    let text = format!(
        "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: edge, namespace: outside}}\n\
         spec:\n  servers:\n  - port: {{number: {port}, name: https, protocol: HTTPS}}\n    hosts: ['*']\n    \
         tls: {{mode: SIMPLE, serverCertificate: {folder}/tls.crt, privateKey: {folder}/tls.key}}\n---\n\
         apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: edge, namespace: outside}}\n\
         spec:\n  hosts: ['{HOST}']\n  gateways: [edge]\n  http:\n  - route:\n    \
         - destination: {{host: cart.shop.svc.cluster.local, port: {{number: {service}}}}}\n"
    );
    control_plane.write("edge.yaml", &text);
}

/// Waits until a client that trusts only this authority gets an answer.
async fn serves(authority: &Authority, port: u16) {
    let client = TlsClient::new(authority, None, &[]);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    wait::until("an answer with the pair", async || {
        let reply = client.get(address, HOST, HOST, "/").await.map_err(|error| error.to_string())?;
        if reply.status.is_success() { Ok(()) } else { Err(reply.status.to_string()) }
    })
    .await;
}

async fn follows_the_pair(flags: &[&str]) {
    if servers::without("envoy") {
        return;
    }
    let (service, port, backend) = (ports::free(), ports::free(), HttpBackend::start("cart").await);
    let control_plane = discovery(service, &backend).await;
    let folder = tempfile::tempdir().unwrap();
    let first = write_pair(folder.path());
    let path = folder.path().display().to_string();
    let setup = AgentSetup {
        discovery: control_plane.grpc(),
        binary: envoy(),
        role: "ingress",
        flags,
        env: &[("PILOTAGE_INGRESS_CERTIFICATES", &*path), ("PROXY_CONFIG", "terminationDrainDuration: 0s")],
        ..AgentSetup::default()
    };
    let mut agent = Agent::start(&setup);
    expose(&control_plane, port, folder.path(), service);
    agent.ready().await;
    serves(&first, port).await;

    let second = write_pair(folder.path());
    serves(&second, port).await;
    let refused = TlsClient::new(&first, None, &[]).connect((Ipv4Addr::LOCALHOST, port).into(), HOST).await;
    assert!(refused.is_err(), "the first pair is not served any longer");

    // A damaged pair is not used.
    fs::write(folder.path().join("tls.crt"), "no certificate").unwrap();
    serves(&second, port).await;
    let third = write_pair(folder.path());
    serves(&third, port).await;
}

#[tokio::test]
async fn the_pair_is_served_and_followed_by_sds() {
    follows_the_pair(&[]).await;
}

#[tokio::test]
async fn the_pair_is_served_and_followed_with_hot_restart() {
    follows_the_pair(&["--hotRestart", "--drainDuration", "1s", "--parentShutdownDuration", "2s"]).await;
}
