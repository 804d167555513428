//! Messages to systemd, received by a socket in its place.

use std::time::Duration;

use tokio::net::UnixDatagram;
use tokio::time::timeout;

use crate::started::{Started, folder};

/// An address without a Consul: the server waits for it.
const ABSENT: &str = "--consulserverURL=http://127.0.0.1:1";

async fn message(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 500];
    let length = timeout(Duration::from_secs(60), socket.recv(&mut buffer)).await.expect("a message").unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

#[tokio::test]
async fn systemd_gets_readiness_signs_of_life_and_the_end() {
    let folder = folder();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let env = [("NOTIFY_SOCKET", &*path.display().to_string()), ("WATCHDOG_USEC", "200000")];
    let mut server = Started::with(folder, &["--registries="], &env);
    let mut seen = Vec::new();
    while !seen.iter().any(|text: &String| text.starts_with("READY=1")) {
        seen.push(message(&socket).await);
    }
    server.ready().await;
    assert_eq!(message(&socket).await, "WATCHDOG=1");
    assert!(server.process.terminate().await.success());
    let mut end = String::new();
    while !end.starts_with("STOPPING=1") {
        end = message(&socket).await;
    }
}

#[tokio::test]
async fn systemd_shows_what_a_server_waits_for() {
    let folder = folder();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let socket_path = path.display().to_string();
    let _server = Started::with(folder, &["--registries=Consul", ABSENT], &[("NOTIFY_SOCKET", &socket_path)]);
    let first = message(&socket).await;
    assert!(first.starts_with("STATUS=waiting for") && first.contains("Consul"), "{first}");
}
