//! TCP traffic.

use testkit::backend::{TcpBackend, greeted};
use testkit::envoy::XdsTransport;
use testkit::wait;
use tokio::net::TcpStream;

use crate::mesh::{Mesh, service, service_port};

testkit::over_both!(tcp_connections_reach_their_service);

async fn tcp_connections_reach_their_service(transport: XdsTransport) {
    let backend = TcpBackend::start("store").await;
    let port = service_port();
    let endpoints = format!("  - {{address: 127.0.0.1, ports: {{tcp: {}}}}}", backend.port());
    let mesh = Mesh::start(transport, port, &[service("store", port, "TCP", "tcp", &endpoints)]).await;
    let stream =
        wait::until("an open port", async || TcpStream::connect(mesh.address).await.map_err(|e| e.to_string())).await;
    assert_eq!(greeted(stream).await, "store");
    mesh.assert_settled().await;
}
