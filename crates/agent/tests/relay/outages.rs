//! Outages of the control plane under traffic: Envoy keeps serving, and the relay reconnects and counts it.

use std::time::{Duration, Instant};

use testkit::backend::HttpBackend;
use testkit::envoy::XdsTransport;
use testkit::{servers, wait};

use crate::fixture::{Fixture, Traffic};

/// Duration of the outage; PILOTAGE_OUTAGE_SECONDS overrides it.
fn outage() -> Duration {
    let seconds = std::env::var("PILOTAGE_OUTAGE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(4))
}

testkit::over_both!(restarted_stopped_and_half_open);

/// One fixture for all three: starting it takes longer than the faults.
async fn restarted_stopped_and_half_open(transport: XdsTransport) {
    if servers::without("envoy") {
        return;
    }
    let backend = HttpBackend::start("v1").await;
    let mut fixture = Fixture::start(transport, &backend).await;
    fixture.assert_settled().await;
    let traffic = Traffic::start(fixture.address);
    restarted(&mut fixture, &backend).await;
    stopped_for_a_while(&mut fixture, &backend).await;
    half_open(&mut fixture, &backend).await;
    let (sent, failed) = traffic.end().await;
    println!("{transport:?}: {sent} requests in all, {failed} failed");
    assert!(sent > 50, "{sent}");
    assert_eq!(failed, 0);
    fixture.assert_settled().await;
}

async fn restarted(fixture: &mut Fixture, backend: &HttpBackend) {
    let before = fixture.metrics.pilot_reconnections.get();
    fixture.discovery.restart().await;
    let ready = Instant::now();
    fixture.reconnected(before).await;
    println!("restarted: reconnected {:?} after it was ready", ready.elapsed());
    fixture.change_arrives(backend, "after-restart").await;
}

async fn stopped_for_a_while(fixture: &mut Fixture, backend: &HttpBackend) {
    let before = fixture.metrics.pilot_reconnections.get();
    fixture.discovery.process().kill();
    wait::until("the loss to be noticed", async || match fixture.metrics.pilot_connected.get() {
        0 => Ok(()),
        open => Err(format!("{open} open streams")),
    })
    .await;
    let outage = outage();
    tokio::time::sleep(outage).await;
    let tried = fixture.metrics.pilot_connection_failures.get();
    assert!(tried > 0, "no connection attempt");
    fixture.discovery.restart().await;
    let ready = Instant::now();
    fixture.reconnected(before).await;
    println!("stopped for {outage:?}: {tried} attempts failed, reconnected {:?} after it was ready", ready.elapsed());
    fixture.change_arrives(backend, "after-outage").await;
}

async fn half_open(fixture: &mut Fixture, backend: &HttpBackend) {
    let before = fixture.metrics.pilot_reconnections.get();
    fixture.link.go_dead();
    let dead = Instant::now();
    fixture.reconnected(before).await;
    println!("half-open: detected and replaced in {:?} with pings of {:?}", dead.elapsed(), crate::fixture::PINGS);
    fixture.change_arrives(backend, "after-half-open").await;
}
