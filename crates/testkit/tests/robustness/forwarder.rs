//! The faults of the TCP forwarder.

use std::time::Duration;

use testkit::backend::TcpBackend;
use testkit::forwarder::{LinkFault, TcpForwarder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends a line through the forwarder and returns what comes back in time.
async fn echo(link: &TcpForwarder, limit: Duration) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(link.address()).await.ok()?;
    stream.write_all(b"hello\n").await.ok()?;
    let mut answer = vec![0; 64];
    let count = tokio::time::timeout(limit, stream.read(&mut answer)).await.ok()?.ok()?;
    answer.truncate(count);
    (count > 0).then_some(answer)
}

#[tokio::test]
async fn faults_begin_and_end() {
    let (long, short) = (Duration::from_secs(20), Duration::from_millis(300));
    let backend = TcpBackend::start("echo").await;
    let link = TcpForwarder::start().await;
    assert_eq!(echo(&link, long).await, None, "without a target");
    link.forward_to(backend.address());
    let answer = echo(&link, long).await;
    assert!(answer.is_some());
    for silent in [LinkFault::Silent, LinkFault::SilentDown] {
        link.disturb(silent);
        assert_eq!(echo(&link, short).await, None, "{silent:?}");
    }
    link.disturb(LinkFault::SilentUp);
    assert!(echo(&link, long).await.is_some(), "the backend speaks first");
    for fault in [LinkFault::None, LinkFault::Delay(Duration::from_millis(50)), LinkFault::Slow(1000)] {
        link.disturb(fault);
        assert!(echo(&link, long).await.is_some(), "{fault:?}");
    }
    link.disturb(LinkFault::Reset(0));
    assert_eq!(echo(&link, long).await, None, "reset");
    link.disturb(LinkFault::None);
    assert_eq!(echo(&link, long).await, answer);
}
