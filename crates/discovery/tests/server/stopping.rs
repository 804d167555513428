//! Shutdown of the server and of connections.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tonic::Code;

use crate::clients::connect;
use crate::started::Started;

#[tokio::test]
async fn sigterm_ends_streams_and_the_process_exits_in_time() {
    let mut server = Started::new(&["--registries=", "--shutdownDuration=8s"]);
    server.ready().await;
    let mut stream = connect(server.port("grpc").await).await;
    let begun = Instant::now();
    let (status, end) = tokio::join!(server.process.terminate(), stream.next());
    assert!(status.success(), "{status}");
    assert_eq!(end.map_err(|status| status.code()), Err(Code::Unavailable));
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert!(server.process.output().contains("stopped"));
}

#[tokio::test]
async fn a_client_that_stays_delays_the_exit_until_the_timeout() {
    let mut server = Started::new(&["--registries=", "--shutdownDuration=200ms"]);
    server.ready().await;
    // An incomplete request: the server waits for the rest.
    let stuck = TcpStream::connect(server.port("http").await).await.unwrap();
    stuck.writable().await.unwrap();
    stuck.try_write(b"GET /ready HTTP/1.1\r\nhost:").unwrap();
    assert!(server.process.terminate().await.success());
}

#[tokio::test]
async fn an_old_connection_is_asked_to_reconnect() {
    let mut server = Started::new(&["--registries=", "--keepaliveMaxServerConnectionAge=100ms"]);
    server.ready().await;
    let stream = TcpStream::connect(server.port("grpc").await).await.unwrap();
    let handshake = http2::handshake::<_, _, Empty<Bytes>>(TokioExecutor::new(), TokioIo::new(stream));
    let (_sender, connection) = handshake.await.unwrap();
    timeout(Duration::from_secs(10), connection).await.expect("the server ends an old connection").unwrap();
}
