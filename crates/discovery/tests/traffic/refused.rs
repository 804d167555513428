//! Configuration that passes validation but that Envoy rejects: its object is withheld from that Envoy and reported, and
//! everything else is served.

use serde_json::Value;
use testkit::backend::HttpBackend;
use testkit::envoy::XdsTransport;
use testkit::{client, wait};

use crate::mesh::{Mesh, host, http_service, service_port, virtual_service};
use crate::patches::{before_router, filter, lua};

testkit::over_both!(
    a_rejected_virtual_service_keeps_its_previous_version,
    a_virtual_service_rejected_at_the_start_is_omitted,
    a_rejected_filter_does_not_affect_another_filter,
    a_filter_rejected_at_the_start_is_omitted,
    rejected_clusters_are_sent_again_without_the_cause,
    clusters_rejected_at_the_start_without_a_hint_are_served_unpatched,
    a_policy_rejected_at_the_start_keeps_its_listener_closed,
    hole_02_a_policy_rejected_later_closes_its_listener,
);

/// A valid regular expression whose program is larger than Envoy's limit.
const TOO_LARGE: &str = "/(basket|order|payment|delivery)/[a-z]{1,40}/[0-9]{1,40}/(open|closed)";

/// A VirtualService that adds this version to responses.
fn versioned(name: &str, version: &str) -> String {
    let routes = format!(
        "  http:\n  - route: [{{destination: {{host: {}}}}}]\n    headers: {{response: {{set: {{x-version: '{version}'}}}}}}",
        host(name)
    );
    virtual_service(name, &routes)
}

/// The same with a match that Envoy rejects.
fn refused(name: &str, version: &str) -> String {
    let to = format!("route: [{{destination: {{host: {}}}}}]", host(name));
    let header = format!("headers: {{response: {{set: {{x-version: '{version}'}}}}}}");
    let routes = format!("  http:\n  - match: [{{uri: {{regex: '{TOO_LARGE}'}}}}]\n    {to}\n  - {to}\n    {header}");
    virtual_service(name, &routes)
}

async fn page(mesh: &Mesh, path: &str) -> String {
    client::get(mesh.discovery.monitoring(), "pilot", path).await.unwrap_or_else(|e| panic!("{path}: {e}")).body
}

async fn metric(mesh: &Mesh, series: &str) -> u64 {
    let text = page(mesh, "/metrics").await;
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse::<f64>().ok());
    value.map_or(0, |value| value as u64)
}

/// Number of sent and of rejected responses of a type.
async fn pushes(mesh: &Mesh, kind: &str) -> (u64, u64) {
    let sent = metric(mesh, &format!("pilot_xds_pushes{{type=\"{kind}\"}}")).await;
    (sent, metric(mesh, &format!("pilot_total_xds_rejects{{type=\"{kind}\"}}")).await)
}

async fn quarantined(mesh: &Mesh) -> Value {
    serde_json::from_str(&page(mesh, "/debug/quarantinez").await).expect("the page is JSON")
}

fn objects(page: &Value) -> Vec<&str> {
    page["objects"].as_array().expect("a list").iter().filter_map(|entry| entry["object"].as_str()).collect()
}

async fn version(mesh: &Mesh, service: &str, wanted: &str) {
    wait::until(&format!("{service} in version {wanted:?}"), async || {
        let reply = client::get(mesh.address, &host(service), "/").await?;
        let got = reply.header("x-version");
        if reply.status == 200 && got == wanted { Ok(()) } else { Err(format!("{} {got:?}", reply.status)) }
    })
    .await;
}

async fn a_rejected_virtual_service_keeps_its_previous_version(transport: XdsTransport) {
    let (cart, reviews) = (HttpBackend::start("cart").await, HttpBackend::start("reviews").await);
    let port = service_port();
    let services = [http_service("cart", port, &[&cart], &["v1"]), http_service("reviews", port, &[&reviews], &["v1"])];
    let mesh = Mesh::start(transport, port, &services).await;
    mesh.discovery.write("routes.yaml", &[versioned("cart", "one"), versioned("reviews", "one")].join("---\n"));
    version(&mesh, "cart", "one").await;
    version(&mesh, "reviews", "one").await;
    let (before, none) = pushes(&mesh, "rds").await;
    assert_eq!(none, 0);

    // Both are in the same route configuration and change together.
    mesh.discovery.write("routes.yaml", &[refused("cart", "two"), versioned("reviews", "two")].join("---\n"));
    version(&mesh, "reviews", "two").await;
    version(&mesh, "cart", "one").await;
    let (after, rejects) = pushes(&mesh, "rds").await;
    assert_eq!(rejects, 1);
    assert_eq!(after - before, 2, "the refused push, and one after it");
    let shown = quarantined(&mesh).await;
    assert_eq!(objects(&shown), ["VirtualService shop/cart"], "{shown}");
    assert_eq!(shown["objects"][0]["served"], "the version before");
    assert!(shown["objects"][0]["message"].as_str().is_some_and(|message| message.contains("regex")), "{shown}");
    assert_eq!(metric(&mesh, "pilotage_quarantined{what=\"object\"}").await, 1);
    // Problems are published with the next snapshot.
    wait::until("the problem", async || {
        let problems = page(&mesh, "/debug/problems").await;
        let is_named = problems.contains("VirtualService shop/cart") && problems.contains("routes.yaml");
        if is_named { Ok(()) } else { Err(problems) }
    })
    .await;

    // Other changes are applied without further NACKs.
    mesh.discovery.write("routes.yaml", &[refused("cart", "two"), versioned("reviews", "three")].join("---\n"));
    version(&mesh, "reviews", "three").await;
    version(&mesh, "cart", "one").await;
    assert_eq!(pushes(&mesh, "rds").await.1, 1);

    // Another bad version is rejected once; the good version stays.
    mesh.discovery.write("routes.yaml", &[refused("cart", "three"), versioned("reviews", "four")].join("---\n"));
    version(&mesh, "reviews", "four").await;
    version(&mesh, "cart", "one").await;
    assert_eq!(pushes(&mesh, "rds").await.1, 2);

    mesh.discovery.write("routes.yaml", &[versioned("cart", "five"), versioned("reviews", "four")].join("---\n"));
    version(&mesh, "cart", "five").await;
    version(&mesh, "reviews", "four").await;
    wait::until("an empty quarantine", async || {
        let (shown, problems) = (quarantined(&mesh).await, page(&mesh, "/debug/problems").await);
        if objects(&shown).is_empty() && problems == "[]" { Ok(()) } else { Err(format!("{shown} {problems}")) }
    })
    .await;
    assert_eq!(pushes(&mesh, "rds").await.1, 2);
}

async fn a_virtual_service_rejected_at_the_start_is_omitted(transport: XdsTransport) {
    let (cart, reviews) = (HttpBackend::start("cart").await, HttpBackend::start("reviews").await);
    let port = service_port();
    let documents = [
        http_service("cart", port, &[&cart], &["v1"]),
        http_service("reviews", port, &[&reviews], &["v1"]),
        refused("cart", "one"),
        versioned("reviews", "one"),
    ];
    let mesh = Mesh::start(transport, port, &documents).await;
    version(&mesh, "reviews", "one").await;
    version(&mesh, "cart", "").await;
    let (sent, rejects) = pushes(&mesh, "rds").await;
    assert!(rejects == 1 && sent <= 1 + 2, "{sent} pushes, {rejects} refused");
    let shown = quarantined(&mesh).await;
    assert_eq!(
        (objects(&shown), &shown["objects"][0]["served"]),
        (vec!["VirtualService shop/cart"], &"nothing".into())
    );
}

async fn answers_with(mesh: &Mesh, expected: &str) {
    wait::until(&format!("header {expected}"), async || {
        let reply = client::get(mesh.address, &host("cart"), "/").await?;
        if reply.header(expected) == "yes" { Ok(()) } else { Err(format!("{reply:?}")) }
    })
    .await;
}

fn good_filter(header: &str) -> String {
    filter("good", &[before_router(&format!("{{name: lua.good, typed_config: {}}}", lua(header)))])
}

/// Well-formed settings; only Envoy's Lua compiler finds the error.
fn bad_filter() -> String {
    let script = "{'@type': type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, default_source_code: \
                  {inline_string: \"function envoy_on_response(h) end end\"}}";
    filter("bad", &[before_router(&format!("{{name: lua.bad, typed_config: {script}}}"))])
}

async fn a_rejected_filter_does_not_affect_another_filter(transport: XdsTransport) {
    let cart = HttpBackend::start("cart").await;
    let port = service_port();
    let mesh = Mesh::start(transport, port, &[http_service("cart", port, &[&cart], &["v1"])]).await;
    mesh.discovery.write("filters.yaml", &good_filter("x-one"));
    answers_with(&mesh, "x-one").await;
    let before = pushes(&mesh, "lds").await.0;
    mesh.discovery.write("bad.yaml", &bad_filter());
    wait::until("the quarantine", async || {
        let shown = quarantined(&mesh).await;
        if objects(&shown) == ["EnvoyFilter outside/bad"] { Ok(()) } else { Err(shown.to_string()) }
    })
    .await;
    answers_with(&mesh, "x-one").await;
    mesh.discovery.write("filters.yaml", &good_filter("x-two"));
    answers_with(&mesh, "x-two").await;
    let (after, rejects) = pushes(&mesh, "lds").await;
    assert_eq!(rejects, 1);
    // The rejected response, at most two that follow, and the edit after it.
    assert!(after - before <= 1 + 2 + 1, "{} pushes", after - before);
}

async fn a_filter_rejected_at_the_start_is_omitted(transport: XdsTransport) {
    let cart = HttpBackend::start("cart").await;
    let port = service_port();
    let documents = [http_service("cart", port, &[&cart], &["v1"]), good_filter("x-one"), bad_filter()];
    let mesh = Mesh::start(transport, port, &documents).await;
    answers_with(&mesh, "x-one").await;
    let shown = quarantined(&mesh).await;
    assert_eq!(objects(&shown), ["EnvoyFilter outside/bad"], "{shown}");
    let (sent, rejects) = pushes(&mesh, "lds").await;
    assert!(rejects <= 2 && sent <= 1 + 2 * rejects, "{sent} pushes, {rejects} refused");
}

/// Clusters with a value that Envoy's constraints forbid.
fn never_connects() -> String {
    let patch = "  - applyTo: CLUSTER\n    match: {context: SIDECAR_OUTBOUND}\n    \
                 patch: {operation: MERGE, value: {connect_timeout: -1s}}\n";
    filter("bad", &[patch.to_owned()])
}

/// Envoy checks constraints before it applies anything, so one cluster fails the whole response, and none is named.
async fn rejected_clusters_are_sent_again_without_the_cause(transport: XdsTransport) {
    let (cart, reviews) = (HttpBackend::start("cart").await, HttpBackend::start("reviews").await);
    let port = service_port();
    let first = http_service("cart", port, &[&cart], &["v1"]);
    let mesh = Mesh::start(transport, port, std::slice::from_ref(&first)).await;
    mesh.answered_by("cart", "cart").await;
    let before = pushes(&mesh, "cds").await.0;
    let second = http_service("reviews", port, &[&reviews], &["v1"]);
    mesh.discovery.write("mesh.yaml", &[first, second, never_connects()].join("---\n"));
    mesh.answered_by("reviews", "reviews").await;
    mesh.answered_by("cart", "cart").await;
    let (after, rejects) = pushes(&mesh, "cds").await;
    assert_eq!(rejects, 1);
    assert_eq!(after - before, 2, "the refused push, and one after it");
    assert!(objects(&quarantined(&mesh).await).contains(&"EnvoyFilter outside/bad"));
}

/// Nothing was accepted before, and the message names neither a cluster nor anything of the filter.
async fn clusters_rejected_at_the_start_without_a_hint_are_served_unpatched(transport: XdsTransport) {
    let cart = HttpBackend::start("cart").await;
    let port = service_port();
    let documents = [http_service("cart", port, &[&cart], &["v1"]), never_connects()];
    let mesh = Mesh::start(transport, port, &documents).await;
    mesh.answered_by("cart", "cart").await;
    let (sent, rejects) = pushes(&mesh, "cds").await;
    assert!(rejects == 1 && sent <= 1 + 2, "{sent} pushes, {rejects} refused");
    let shown = quarantined(&mesh).await;
    assert_eq!(objects(&shown), ["EnvoyFilter outside/bad"], "{shown}");
}

/// A policy that denies callers of a namespace.
fn denied(namespace: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: bad, namespace: shop}}\n\
         spec:\n  action: DENY\n  rules: [{{from: [{{source: {{namespaces: [{namespace}]}}}}]}}]\n"
    )
}

/// Namespaces become regular expressions, and this one exceeds Envoy's limit.
fn too_large() -> String {
    "n".repeat(120)
}

/// Omitting the policy would allow callers that it denies.
async fn a_policy_rejected_at_the_start_keeps_its_listener_closed(transport: XdsTransport) {
    let cart = HttpBackend::start("cart").await;
    let port = service_port();
    let sidecar = crate::policies::workload(port, cart.port());
    let mesh = Mesh::server(transport, port, &[sidecar.clone(), denied(&too_large())], "").await;
    // Envoy may be ready before its NACK arrives.
    wait::until("a withheld listener", async || {
        let shown = quarantined(&mesh).await;
        let is_withheld = objects(&shown).is_empty() && shown["resources"][0]["type"] == "LDS";
        if is_withheld { Ok(()) } else { Err(shown.to_string()) }
    })
    .await;
    let reply = client::get(mesh.address, "cart.example", "/").await;
    assert!(reply.is_err(), "{reply:?}");
    mesh.discovery.write("mesh.yaml", &sidecar);
    wait::until("an open door", async || Ok(client::get(mesh.address, "cart.example", "/").await.map(drop)?)).await;
    assert_eq!(cart.requests(), 1);
}

/// Keeping the previous version would allow callers that the new one denies.
async fn hole_02_a_policy_rejected_later_closes_its_listener(transport: XdsTransport) {
    let cart = HttpBackend::start("cart").await;
    let port = service_port();
    let sidecar = crate::policies::workload(port, cart.port());
    let mesh = Mesh::server(transport, port, &[sidecar.clone(), denied("other")], "").await;
    wait::until("an open door", async || Ok(client::get(mesh.address, "cart.example", "/").await.map(drop)?)).await;
    mesh.discovery.write("mesh.yaml", &[sidecar.clone(), denied(&too_large())].join("---\n"));
    wait::until("a closed door", async || match client::get(mesh.address, "cart.example", "/").await {
        Err(_) => Ok(()),
        Ok(reply) => Err(format!("{reply:?}")),
    })
    .await;
    let shown = quarantined(&mesh).await;
    assert!(objects(&shown).is_empty(), "{shown}");
    mesh.discovery.write("mesh.yaml", &[sidecar, denied("another")].join("---\n"));
    wait::until("an open door again", async || Ok(client::get(mesh.address, "cart.example", "/").await.map(drop)?))
        .await;
}
