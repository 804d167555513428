//! Injected faults, timeouts, retries, subset policies, outlier ejection.

use std::time::{Duration, Instant};

use testkit::backend::HttpBackend;
use testkit::envoy::XdsTransport;

use crate::mesh::{Mesh, SUBSETS, destination_rule, host, http_service, service_port, virtual_service};

testkit::over_both!(
    fault_aborts_and_delays,
    timeout_ends_a_slow_call,
    retry_finds_the_good_endpoint,
    subset_policy_limits_only_its_subset,
    failing_endpoint_is_ejected,
);

async fn fault_aborts_and_delays(transport: XdsTransport) {
    let backend = HttpBackend::start("v1").await;
    let port = service_port();
    let route = format!("    route: [{{destination: {{host: {}}}}}]", host("cart"));
    let routes = format!(
        "  http:\n  - match: [{{headers: {{x-fault: {{exact: abort}}}}}}]\n    \
         fault: {{abort: {{httpStatus: 555, percentage: {{value: 100}}}}}}\n{route}\n\
         \x20 - match: [{{headers: {{x-fault: {{exact: delay}}}}}}]\n    \
         fault: {{delay: {{fixedDelay: 0.3s, percentage: {{value: 100}}}}}}\n{route}\n  - route: [{{destination: {{host: {}}}}}]",
        host("cart")
    );
    let documents = [http_service("cart", port, &[&backend], &["v1"]), virtual_service("cart", &routes)];
    let mesh = Mesh::start(transport, port, &documents).await;
    assert_eq!(mesh.get_with("cart", "/", &[("x-fault", "abort")]).await.status.as_u16(), 555);
    let begun = Instant::now();
    assert_eq!(mesh.get_with("cart", "/", &[("x-fault", "delay")]).await.backend(), "v1");
    // Envoy's timers may fire a moment early.
    assert!(begun.elapsed() >= Duration::from_millis(250), "{:?}", begun.elapsed());
    assert_eq!(mesh.get("cart", "/").await.backend(), "v1");
    mesh.assert_settled().await;
}

async fn timeout_ends_a_slow_call(transport: XdsTransport) {
    let backend = HttpBackend::start("v1").await;
    backend.answer_after(Duration::from_secs(30));
    let port = service_port();
    let routes = format!("  http:\n  - route: [{{destination: {{host: {}}}}}]\n    timeout: 0.2s", host("cart"));
    let documents = [http_service("cart", port, &[&backend], &["v1"]), virtual_service("cart", &routes)];
    let mesh = Mesh::start(transport, port, &documents).await;
    let begun = Instant::now();
    assert_eq!(mesh.get("cart", "/").await.status.as_u16(), 504);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    mesh.assert_settled().await;
}

async fn retry_finds_the_good_endpoint(transport: XdsTransport) {
    let (bad, good) = (HttpBackend::start("bad").await, HttpBackend::start("good").await);
    bad.answer_with(503);
    let port = service_port();
    let routes = format!(
        "  http:\n  - route: [{{destination: {{host: {}}}}}]\n    retries: {{attempts: 3, retryOn: 5xx, backoff: 1ms}}",
        host("cart")
    );
    let documents = [http_service("cart", port, &[&bad, &good], &["v1", "v1"]), virtual_service("cart", &routes)];
    let mesh = Mesh::start(transport, port, &documents).await;
    for _ in 0..20 {
        let reply = mesh.get("cart", "/").await;
        assert_eq!((reply.status.as_u16(), reply.backend()), (200, "good"));
    }
    assert!(bad.requests() > 0, "the bad endpoint was never tried");
    mesh.assert_settled().await;
}

async fn subset_policy_limits_only_its_subset(transport: XdsTransport) {
    let (v1, v2) = (HttpBackend::start("v1").await, HttpBackend::start("v2").await);
    v2.answer_after(Duration::from_secs(2));
    let port = service_port();
    let rule = "  subsets:\n  - {name: v1, labels: {version: v1}}\n  - name: v2\n    labels: {version: v2}\n    trafficPolicy:\n      \
                connectionPool: {http: {http1MaxPendingRequests: 1, maxRetries: 0}, tcp: {maxConnections: 1}}";
    let to = |subset: &str| format!("[{{destination: {{host: {}, subset: {subset}}}}}]", host("cart"));
    let routes = format!(
        "  http:\n  - match: [{{uri: {{prefix: /v2}}}}]\n    route: {}\n    retries: {{attempts: 0}}\n  - route: {}",
        to("v2"),
        to("v1")
    );
    let documents = [
        http_service("cart", port, &[&v1, &v2], &["v1", "v2"]),
        destination_rule("cart", rule),
        virtual_service("cart", &routes),
    ];
    let mesh = Mesh::start(transport, port, &documents).await;
    // One call is active, one may wait, the others are rejected at once.
    let (a, b, c, d) = tokio::join!(
        mesh.get("cart", "/v2"),
        mesh.get("cart", "/v2"),
        mesh.get("cart", "/v2"),
        mesh.get("cart", "/v2")
    );
    let statuses: Vec<u16> = [a, b, c, d].iter().map(|r| r.status.as_u16()).collect();
    assert!(statuses.contains(&503) && statuses.contains(&200), "{statuses:?}");
    assert_eq!(mesh.get("cart", "/v1").await.backend(), "v1");
    mesh.assert_settled().await;
}

async fn failing_endpoint_is_ejected(transport: XdsTransport) {
    let (bad, good) = (HttpBackend::start("bad").await, HttpBackend::start("good").await);
    bad.answer_with(500);
    let port = service_port();
    let rule = format!(
        "  trafficPolicy:\n    outlierDetection: {{consecutive5xxErrors: 2, interval: 0.05s, baseEjectionTime: 60s, maxEjectionPercent: 100}}\n{SUBSETS}"
    );
    let documents = [http_service("cart", port, &[&bad, &good], &["v1", "v1"]), destination_rule("cart", &rule)];
    let mesh = Mesh::start(transport, port, &documents).await;
    testkit::wait::until("ejection of the bad endpoint", async || {
        let _ = testkit::client::get(mesh.address, &host("cart"), "/").await;
        let ejected = mesh.envoy.admin().stats("outlier_detection.ejections_active").await?;
        if ejected.values().any(|count| *count > 0) { Ok(()) } else { Err(format!("{ejected:?}")) }
    })
    .await;
    assert_eq!(mesh.counted("cart", 20).await, [("good".to_owned(), 20)].into());
    mesh.assert_settled().await;
}
