//! The control plane goes away in several ways under traffic: Envoy keeps serving, the relay comes back by
//! itself, and it is counted.

use std::time::{Duration, Instant};

use testkit::backend::HttpBackend;
use testkit::envoy::Transport;
use testkit::{servers, wait};

use crate::stage::{Stage, Traffic};

/// How long the control plane stays away; a full minute when asked for.
fn outage() -> Duration {
    let seconds = std::env::var("PILOTAGE_OUTAGE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(4))
}

testkit::over_both!(restarted_stopped_and_half_open);

/// One stage for all three: starting it costs more than the faults.
async fn restarted_stopped_and_half_open(transport: Transport) {
    if servers::without("envoy") {
        return;
    }
    let backend = HttpBackend::start("v1").await;
    let mut stage = Stage::start(transport, &backend).await;
    stage.assert_settled().await;
    let traffic = Traffic::start(stage.address);
    restarted(&mut stage, &backend).await;
    stopped_for_a_while(&mut stage, &backend).await;
    half_open(&mut stage, &backend).await;
    let (sent, failed) = traffic.end().await;
    println!("{transport:?}: {sent} requests in all, {failed} failed");
    assert!(sent > 50, "{sent}");
    assert_eq!(failed, 0);
    stage.assert_settled().await;
}

async fn restarted(stage: &mut Stage, backend: &HttpBackend) {
    let before = stage.metrics.pilot_reconnections.get();
    stage.discovery.restart().await;
    let ready = Instant::now();
    stage.reconnected(before).await;
    println!("restarted: stream again {:?} after it was ready", ready.elapsed());
    stage.change_arrives(backend, "after-restart").await;
}

async fn stopped_for_a_while(stage: &mut Stage, backend: &HttpBackend) {
    let before = stage.metrics.pilot_reconnections.get();
    stage.discovery.process().kill();
    wait::until("the loss to be noticed", async || match stage.metrics.pilot_connected.get() {
        0 => Ok(()),
        standing => Err(format!("{standing} streams stand")),
    })
    .await;
    let outage = outage();
    tokio::time::sleep(outage).await;
    let tried = stage.metrics.pilot_connection_failures.get();
    assert!(tried > 0, "nobody tried");
    stage.discovery.restart().await;
    let ready = Instant::now();
    stage.reconnected(before).await;
    println!("stopped for {outage:?}: {tried} attempts failed, stream again {:?} after ready", ready.elapsed());
    stage.change_arrives(backend, "after-outage").await;
}

async fn half_open(stage: &mut Stage, backend: &HttpBackend) {
    let before = stage.metrics.pilot_reconnections.get();
    stage.wire.go_dead();
    let dead = Instant::now();
    stage.reconnected(before).await;
    println!("half-open: found and replaced in {:?} with pings of {:?}", dead.elapsed(), crate::stage::PINGS);
    stage.change_arrives(backend, "after-half-open").await;
}
