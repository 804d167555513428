//! How the server goes, and how it asks clients to go.

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
async fn asked_to_stop_it_ends_streams_and_goes_in_time() {
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
async fn client_that_will_not_go_does_not_hold_it_up_for_ever() {
    let mut server = Started::new(&["--registries=", "--shutdownDuration=200ms"]);
    server.ready().await;
    // Half a request: the server waits for the rest.
    let stuck = TcpStream::connect(server.port("http").await).await.unwrap();
    stuck.writable().await.unwrap();
    stuck.try_write(b"GET /ready HTTP/1.1\r\nhost:").unwrap();
    assert!(server.process.terminate().await.success());
}

#[tokio::test]
async fn old_connection_is_asked_to_go() {
    let mut server = Started::new(&["--registries=", "--keepaliveMaxServerConnectionAge=100ms"]);
    server.ready().await;
    let stream = TcpStream::connect(server.port("grpc").await).await.unwrap();
    let handshake = http2::handshake::<_, _, Empty<Bytes>>(TokioExecutor::new(), TokioIo::new(stream));
    let (_sender, connection) = handshake.await.unwrap();
    timeout(Duration::from_secs(10), connection).await.expect("the server ends an old connection").unwrap();
}
