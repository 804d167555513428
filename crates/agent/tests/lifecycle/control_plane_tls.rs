//! Mutual TLS with the control plane as in Pilot 0.8: certificates in `/etc/certs`, and the names of the server, for the
//! relay and for an Envoy that connects itself.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use testkit::backend::HttpBackend;
use testkit::discovery::DiscoveryProcess;
use testkit::{client, ports, servers, wait};

use crate::fixture::{Agent, AgentSetup, answered, discovery_with, envoy};

type Authority = CertifiedIssuer<'static, KeyPair>;

const PILOT: &str = "spiffe://cluster.local/ns/istio-system/sa/istio-pilot-service-account";
const DIRECT: &str = "--xdsRelay=false";

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    // Envoy takes a certificate whose subject equals its issuer for a self-signed one.
    params.distinguished_name.push(DnType::CommonName, "root of the mesh");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Writes a certificate with this identity as Citadel did: `cert-chain.pem`, `key.pem` and `root-cert.pem`.
fn issue(authority: &Authority, folder: &Path, identity: &str) {
    fs::create_dir_all(folder).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.subject_alt_names = vec![SanType::URI(identity.try_into().unwrap())];
    let certificate = params.signed_by(&key, authority).unwrap();
    fs::write(folder.join("cert-chain.pem"), certificate.pem()).unwrap();
    fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
    fs::write(folder.join("root-cert.pem"), authority.pem()).unwrap();
}

/// A control plane with this identity on a TLS port.
async fn secure(
    authority: &Authority,
    folder: &Path,
    identity: &str,
    service: (u16, &HttpBackend),
) -> (DiscoveryProcess, SocketAddr) {
    issue(authority, folder, identity);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()));
    let file = |name: &str| folder.join(name).display().to_string();
    let args = vec![
        format!("--secureGRPCAddr={address}"),
        format!("--tlsCertFile={}", file("cert-chain.pem")),
        format!("--tlsKeyFile={}", file("key.pem")),
        format!("--caCertFile={}", file("root-cert.pem")),
    ];
    (discovery_with(service.0, service.1, args).await, address)
}

/// An agent with 0.8's command line, in a folder with `etc/certs`.
fn agent(folder: &Path, discovery: SocketAddr, more: &[&str]) -> Agent {
    let flags = [&["--controlPlaneAuthPolicy", "MUTUAL_TLS"], more].concat();
    let work_folder = folder.to_owned();
    Agent::start(&AgentSetup { discovery, binary: envoy(), flags: &flags, work_folder, ..AgentSetup::default() })
}

#[tokio::test]
async fn envoy_is_ready_with_the_certificates_of_pilot_0_8() {
    if servers::without("envoy") {
        return;
    }
    let (authority, folder) = (authority(), tempfile::tempdir().unwrap());
    let (port, backend) = (ports::free(), HttpBackend::start("cart").await);
    let (_discovery, address) = secure(&authority, &folder.path().join("pilot"), PILOT, (port, &backend)).await;
    issue(&authority, &folder.path().join("etc/certs"), "spiffe://cluster.local/ns/outside/sa/client");
    for more in [&[][..], &[DIRECT][..]] {
        let mut agent = agent(folder.path(), address, more);
        agent.ready().await;
        answered(port).await;
    }
}

#[tokio::test]
async fn control_plane_with_another_name_is_rejected_and_named() {
    if servers::without("envoy") {
        return;
    }
    let (authority, folder) = (authority(), tempfile::tempdir().unwrap());
    let (port, backend) = (ports::free(), HttpBackend::start("cart").await);
    let other = "spiffe://cluster.local/ns/shop/sa/cart";
    let (_discovery, address) = secure(&authority, &folder.path().join("pilot"), other, (port, &backend)).await;
    issue(&authority, &folder.path().join("etc/certs"), "spiffe://cluster.local/ns/outside/sa/client");
    let relayed = agent(folder.path(), address, &[]);
    relayed.logs(&format!("the certificate is for {other}; required is 127.0.0.1 or {PILOT}"), 1).await;
    let direct = agent(folder.path(), address, &[DIRECT]);
    wait::until("the reason on the readiness page", async || {
        let reply = client::get((Ipv4Addr::LOCALHOST, direct.status).into(), "agent", "/healthz/ready").await?;
        let text = format!("{} {}", reply.status, reply.body);
        let expected = format!("certificate has none of the required names 127.0.0.1, {PILOT}");
        if text.contains(&expected) { Ok(()) } else { Err(text) }
    })
    .await;
    drop((relayed, direct));
    // The operator names it.
    for more in [&["--pilotIdentity", "ns/shop/sa/cart"][..], &["--pilotIdentity", "ns/shop/sa/cart", DIRECT][..]] {
        agent(folder.path(), address, more).ready().await;
    }
}
