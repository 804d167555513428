//! Several control planes: the relay goes to the next one when its own is gone, and back when that one is gone too.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::metrics::Metrics;
use agent::relay::{Relay, RelayOptions, Upstream};
use serde_json::json;
use testkit::backend::HttpBackend;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::envoy::{Bootstrap, Envoy, XdsTransport};
use testkit::{client, ports, programs, servers, wait};
use tokio_util::sync::CancellationToken;

use crate::fixture::{HOST, PINGS, Traffic, service};

async fn control_plane(port: u16, backend: &HttpBackend) -> DiscoveryProcess {
    let setup = DiscoveryOptions {
        files: vec![("mesh.yaml".to_owned(), service(port, &[backend]))],
        mesh: "enableAutoMtls: false\n".to_owned(),
        ..DiscoveryOptions::default()
    };
    let binary = programs::binary("discovery", "pilot-discovery");
    DiscoveryProcess::start(&binary.to_string_lossy(), setup).await
}

async fn answered_by(address: SocketAddr, backend: &str) {
    let begun = Instant::now();
    wait::until(&format!("an answer of {backend}"), async || {
        let reply = client::get(address, HOST, "/").await?;
        if reply.backend() == backend { Ok(()) } else { Err(format!("{} {}", reply.status, reply.body)) }
    })
    .await;
    println!("answered by {backend} after {:?}", begun.elapsed());
}

testkit::over_both!(goes_to_the_next_control_plane);

/// Each control plane routes to a different backend, so that answers show whose configuration is in use.
async fn goes_to_the_next_control_plane(transport: XdsTransport) {
    if servers::without("envoy") {
        return;
    }
    let (one, two) = (HttpBackend::start("one").await, HttpBackend::start("two").await);
    let port = ports::free();
    let (mut first, mut second) = (control_plane(port, &one).await, control_plane(port, &two).await);
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("XDS");
    let (metrics, stop) = (Arc::new(Metrics::default()), CancellationToken::new());
    let upstream = Upstream {
        others: vec![second.grpc().to_string()],
        pings: PINGS,
        ..Upstream::plain(&first.grpc().to_string())
    };
    let options =
        RelayOptions { max_connect_wait: Duration::from_secs(2), ..RelayOptions::new(socket.clone(), upstream) };
    let relay = Relay::bind(options, None, Arc::clone(&metrics)).expect("a relay");
    tokio::spawn(relay.serve(stop.clone()));
    let bootstrap = Bootstrap::sidecar(0, transport, "client", "outside", json!({"app": "client"}));
    let mut envoy = Envoy::start_with(bootstrap.over_socket(&socket)).await;
    envoy.ready().await;
    let address = (Ipv4Addr::LOCALHOST, port).into();
    answered_by(address, "one").await;
    let traffic = Traffic::start(address);
    first.process().kill();
    answered_by(address, "two").await;
    // A control plane that is back is not gone to without a reason.
    first.restart().await;
    let before = metrics.pilot_reconnections.get();
    answered_by(address, "two").await;
    assert_eq!(metrics.pilot_reconnections.get(), before);
    second.process().kill();
    answered_by(address, "one").await;
    let (sent, failed) = traffic.end().await;
    println!("{transport:?}: {sent} requests, {failed} failed");
    assert_eq!(failed, 0);
    envoy.admin().assert_settled().await;
    stop.cancel();
}
