//! The control plane restarts under traffic: no request fails, and unchanged resources are not sent again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use testkit::backend::HttpBackend;
use testkit::client;
use testkit::envoy::XdsTransport;
use testkit::wait;

use crate::mesh::{Mesh, host, http_service, service_port};

testkit::over_both!(killed_and_restarted_under_traffic);

#[tokio::test]
async fn a_reconnecting_envoy_gets_only_changes() {
    const SERVICES: usize = 200;
    let backend = HttpBackend::start("v1").await;
    let port = service_port();
    let services = |backends: &[&HttpBackend]| -> Vec<String> {
        let changed = http_service("cart", port, backends, &["v1", "v1"]);
        let same = (0..SERVICES).map(|i| http_service(&format!("s{i}"), port, &[&backend], &["v1"]));
        same.chain([changed]).collect()
    };
    let mut mesh = Mesh::start(XdsTransport::Delta, port, &services(&[&backend])).await;
    mesh.answered_by("cart", "v1").await;
    mesh.assert_settled().await;
    let all = received(&mesh).await;
    mesh.discovery.restart().await;
    let second = HttpBackend::start("second").await;
    mesh.discovery.write("mesh.yaml", &services(&[&backend, &second]).join("---\n"));
    mesh.answered_by("cart", "second").await;
    mesh.assert_settled().await;
    let again = received(&mesh).await - all;
    println!("{all} bytes for {SERVICES} services, {again} after a restart in which one changed");
    assert!(all > 100_000, "{all}");
    assert!(again < all / 50, "{again} of {all}");
}

/// Bytes that Envoy has read from the control plane so far.
async fn received(mesh: &Mesh) -> u64 {
    let stats = mesh.envoy.admin().stats("cluster.xds-grpc.upstream_cx_rx_bytes_total").await.expect("stats");
    stats.values().sum()
}

async fn killed_and_restarted_under_traffic(transport: XdsTransport) {
    let backend = HttpBackend::start("v1").await;
    let port = service_port();
    let mut mesh = Mesh::start(transport, port, &[http_service("cart", port, &[&backend], &["v1"])]).await;
    mesh.answered_by("cart", "v1").await;
    mesh.assert_settled().await;
    let (stop, sent, failed) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let traffic = tokio::spawn({
        let (stop, sent, failed, address) = (stop.clone(), sent.clone(), failed.clone(), mesh.address);
        async move {
            while !stop.load(Ordering::Relaxed) {
                sent.fetch_add(1, Ordering::Relaxed);
                let good = client::get(address, &host("cart"), "/").await.is_ok_and(|r| r.status.is_success());
                if !good {
                    failed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    });
    let before = mesh.envoy.admin().stats("update_success").await.expect("stats");
    mesh.discovery.restart().await;
    let connection = wait::until("the client's stream", async || {
        let page = client::get(mesh.discovery.http(), "pilot", "/debug/syncz").await?;
        let clients = page.json();
        match clients.as_array().and_then(|all| all.first()) {
            Some(client) if client["proxy"] == "client.outside" => Ok(client.clone()),
            _ => Err(page.body),
        }
    })
    .await;
    // A change after the restart arrives, so the stream is alive in both directions.
    let second = HttpBackend::start("second").await;
    mesh.discovery.write("mesh.yaml", &http_service("cart", port, &[&backend, &second], &["v1", "v1"]));
    mesh.answered_by("cart", "second").await;
    stop.store(true, Ordering::Relaxed);
    traffic.await.expect("the traffic task ends");
    let (sent, failed) = (sent.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
    println!("{sent} requests during the restart, {failed} failed; stream {connection}");
    assert!(sent > 10, "{sent}");
    assert_eq!(failed, 0);
    if transport == XdsTransport::Delta {
        // Only the one changed load assignment counts as an update of a resource.
        let after = mesh.envoy.admin().stats("update_success").await.expect("stats");
        let updates = |stats: &std::collections::BTreeMap<String, u64>, name: &str| -> u64 {
            stats.iter().filter(|(key, _)| key.contains(name)).map(|(_, count)| *count).sum()
        };
        assert_eq!(updates(&after, "cluster.outbound") - updates(&before, "cluster.outbound"), 1, "{after:?}");
    }
    mesh.assert_settled().await;
}
