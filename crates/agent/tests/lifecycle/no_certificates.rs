//! A proxy without certificate files and without a CA: ready in plain text, which is reported, and closed where a policy
//! demands mutual TLS.

use std::net::{Ipv4Addr, SocketAddr};

use testkit::backend::HttpBackend;
use testkit::{client, ports, servers, wait};

use crate::fixture::{Agent, AgentSetup, answered, discovery_of_mesh, envoy};

/// The proxy's own service on a port.
fn own_service(port: u16, backend: &HttpBackend) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: client, namespace: outside}}\nspec:\n  \
         ingress:\n  - {{port: {{number: {port}, protocol: HTTP, name: http}}, bind: 127.0.0.1, \
         defaultEndpoint: '127.0.0.1:{}'}}\n  egress: [{{hosts: ['*/*']}}]\n",
        backend.port()
    )
}

fn policy(mode: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: own, namespace: outside}}\n\
         spec: {{mtls: {{mode: {mode}}}}}\n"
    )
}

/// Whether the port accepts a plain-text request.
async fn is_open(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    client::get(address, "client", "/").await.is_ok_and(|reply| reply.status.is_success())
}

#[tokio::test]
async fn a_proxy_without_certificates_is_ready_in_plain_text_and_closed_where_tls_is_demanded() {
    if servers::without("envoy") {
        return;
    }
    let (port, own_port, backend) = (ports::free(), ports::free(), HttpBackend::start("cart").await);
    // Auto mTLS is on, as by default.
    let server = discovery_of_mesh(port, &backend, Vec::new(), "{}\n").await;
    server.write("own.yaml", &own_service(own_port, &backend));
    let mut agent = Agent::start(&AgentSetup { discovery: server.grpc(), binary: envoy(), ..AgentSetup::default() });
    agent.ready().await;
    let status = SocketAddr::from((Ipv4Addr::LOCALHOST, agent.status));
    let page = client::get(status, "agent", "/healthz/ready").await.unwrap().body;
    assert!(page.contains("no certificate files and no CA: traffic is plain text"), "{page}");
    answered(port).await;
    let problem = "proxies of namespace outside have neither certificate files nor a CA";
    wait::until("a problem", async || {
        let page = client::get(server.http(), "pilot", "/debug/problems").await?.body;
        if page.contains(problem) { Ok(()) } else { Err(page) }
    })
    .await;
    wait::until("an open port", async || if is_open(own_port).await { Ok(()) } else { Err("closed".to_owned()) }).await;

    server.write("policy.yaml", &policy("STRICT"));
    wait::until("a closed port", async || if is_open(own_port).await { Err("open".to_owned()) } else { Ok(()) }).await;
    // The rest is served as before.
    answered(port).await;
    server.write("policy.yaml", &policy("PERMISSIVE"));
    wait::until("an open port", async || if is_open(own_port).await { Ok(()) } else { Err("closed".to_owned()) }).await;
    drop(agent);
    wait::until("no problem", async || {
        let page = client::get(server.http(), "pilot", "/debug/problems").await?.body;
        if page.contains(problem) { Err(page) } else { Ok(()) }
    })
    .await;
}
