//! A proxy without certificate files and without a CA: ready in plain text, which is reported, and closed where a policy
//! demands mutual TLS. Files that are mounted later are used.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use testkit::backend::HttpBackend;
use testkit::{client, ports, servers, wait};
use tokio::net::TcpStream;

use crate::fixture::{Agent, AgentSetup, answered, discovery_of_mesh, envoy, get};
use crate::load::write_certificates;

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

/// The readiness page.
async fn readiness(agent: &Agent) -> Result<String, String> {
    Ok(client::get(SocketAddr::from((Ipv4Addr::LOCALHOST, agent.status)), "agent", "/healthz/ready").await?.body)
}

#[tokio::test]
async fn certificates_that_are_mounted_later_are_used_without_a_restart() {
    if servers::without("envoy") {
        return;
    }
    for flags in [&[][..], &["--xdsRelay=false", "--hotRestart"]] {
        let (port, own_port, backend) = (ports::free(), ports::free(), HttpBackend::start("cart").await);
        let server = discovery_of_mesh(port, &backend, Vec::new(), "{}\n").await;
        server.write("own.yaml", &own_service(own_port, &backend));
        server.write("policy.yaml", &policy("STRICT"));
        let work_folder = tempfile::tempdir().unwrap();
        let mut agent = Agent::start(&AgentSetup {
            discovery: server.grpc(),
            binary: envoy(),
            work_folder: work_folder.path().to_owned(),
            flags,
            ..AgentSetup::default()
        });
        agent.ready().await;
        assert!(readiness(&agent).await.unwrap().contains("no certificate files and no CA"), "{flags:?}");
        answered(port).await;
        let own = (Ipv4Addr::LOCALHOST, own_port);
        assert!(TcpStream::connect(own).await.is_err(), "{flags:?}: the port is open");

        // As kubelet does, when an optional Secret is made.
        let mount = work_folder.path().join("etc");
        fs::create_dir_all(mount.join("..certs")).unwrap();
        write_certificates(&mount.join("..certs"));
        fs::rename(mount.join("..certs"), mount.join("certs")).unwrap();
        wait::until("an open port", async || {
            TcpStream::connect(own).await.map(drop).map_err(|error| error.to_string())
        })
        .await;
        assert!(!is_open(own_port).await, "{flags:?}: the port demands mutual TLS");
        wait::until("no note", async || match readiness(&agent).await? {
            page if page.contains("no certificate files") => Err(page),
            _ => Ok(()),
        })
        .await;
        agent.process.check_alive();
        answered(port).await;
    }
}

/// The service `cart.shop` with an endpoint that accepts mutual TLS.
fn meshed_cart(port: u16, backend: &HttpBackend) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: cart, namespace: shop}}\n\
         spec:\n  hosts: [cart.shop.svc.cluster.local]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
         ports: [{{name: http, number: {port}, protocol: HTTP}}]\n  endpoints:\n  \
         - {{address: 127.0.0.1, ports: {{http: {}}}, labels: {{security.istio.io/tlsMode: istio}}}}\n",
        backend.port()
    )
}

/// Waits until requests to `cart.shop` are refused by the sidecar. From then on none reaches the backend.
async fn refused(port: u16, backend: &HttpBackend, case: &str) {
    wait::until(case, async || match get(port).await?.status.as_u16() {
        503 => Ok(()),
        other => Err(format!("{case}: {other}")),
    })
    .await;
    let before = backend.requests();
    for _ in 0..10 {
        assert_eq!(get(port).await.unwrap().status.as_u16(), 503, "{case}");
    }
    assert_eq!(backend.requests(), before, "{case}: sent in plain text");
}

#[tokio::test]
async fn a_destination_that_demands_mutual_tls_is_never_called_in_plain_text() {
    if servers::without("envoy") {
        return;
    }
    let (port, backend) = (ports::free(), HttpBackend::start("cart").await);
    let server = discovery_of_mesh(port, &backend, Vec::new(), "{}\n").await;
    server.write("cart.yaml", &meshed_cart(port, &backend));
    let mut agent = Agent::start(&AgentSetup { discovery: server.grpc(), binary: envoy(), ..AgentSetup::default() });
    agent.ready().await;
    answered(port).await;
    let rule = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: cart, namespace: shop}\n\
                spec: {host: cart.shop.svc.cluster.local, trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}}\n";
    let strict = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n\
                  metadata: {name: default, namespace: shop}\nspec: {mtls: {mode: STRICT}}\n";
    for (case, text) in [("a rule with ISTIO_MUTUAL", rule), ("a STRICT namespace", strict)] {
        server.write("demand.yaml", text);
        refused(port, &backend, case).await;
        agent.ready().await;
        server.remove("demand.yaml");
        answered(port).await;
    }
}

#[tokio::test]
async fn a_proxy_without_certificates_is_ready_in_the_mesh_of_the_mock_registry() {
    if servers::without("envoy") {
        return;
    }
    let (port, backend) = (ports::free(), HttpBackend::start("cart").await);
    let server = discovery_of_mesh(port, &backend, vec!["--registries=Mock".to_owned()], "{}\n").await;
    let mut agent = Agent::start(&AgentSetup { discovery: server.grpc(), binary: envoy(), ..AgentSetup::default() });
    agent.ready().await;
    answered(port).await;
    let clusters = agent.admin_page("/clusters").await.unwrap();
    assert!(clusters.contains("hello.default.svc.cluster.local"), "{clusters}");
}
