//! Bytes instead of requests.

use testkit::backend::TcpBackend;
use testkit::envoy::Transport;
use testkit::wait;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::mesh::{Mesh, service, service_port};

crate::over_both!(tcp_connections_reach_their_service);

async fn tcp_connections_reach_their_service(transport: Transport) {
    let backend = TcpBackend::start("store").await;
    let port = service_port();
    let endpoints = format!("  - {{address: 127.0.0.1, ports: {{tcp: {}}}}}", backend.port());
    let mesh = Mesh::start(transport, port, &[service("store", port, "TCP", "tcp", &endpoints)]).await;
    let stream =
        wait::until("an open port", async || TcpStream::connect(mesh.address).await.map_err(|e| e.to_string())).await;
    let mut stream = BufReader::new(stream);
    let mut name = String::new();
    stream.read_line(&mut name).await.expect("the backend says its name");
    assert_eq!(name, "store\n");
    stream.write_all(b"ping").await.expect("bytes go out");
    let mut echo = [0; 4];
    stream.read_exact(&mut echo).await.expect("bytes come back");
    assert_eq!(&echo, b"ping");
    mesh.assert_settled().await;
}
