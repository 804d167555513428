//! Routing of requests: weights, matches, rewrites, redirects, direct responses, mirrors.

use testkit::backend::HttpBackend;
use testkit::envoy::XdsTransport;
use testkit::wait;

use crate::mesh::{Mesh, SUBSETS, destination_rule, host, http_service, service_port, virtual_service};

testkit::over_both!(
    weights_split_requests,
    headers_and_paths_choose_the_version,
    uri_and_authority_are_rewritten,
    redirect_and_direct_response_need_no_backend,
    mirror_sees_every_request,
);

/// Two versions of one service `cart` and the rules for it.
async fn two_versions(transport: XdsTransport, routes: &str) -> (Mesh, HttpBackend, HttpBackend) {
    let (v1, v2) = (HttpBackend::start("v1").await, HttpBackend::start("v2").await);
    let port = service_port();
    let documents = [
        http_service("cart", port, &[&v1, &v2], &["v1", "v2"]),
        destination_rule("cart", SUBSETS),
        virtual_service("cart", routes),
    ];
    (Mesh::start(transport, port, &documents).await, v1, v2)
}

fn to(subset: &str) -> String {
    format!("{{destination: {{host: {}, subset: {subset}}}}}", host("cart"))
}

async fn weights_split_requests(transport: XdsTransport) {
    let weighted = |subset: &str, weight: u32| {
        format!("    - {{destination: {{host: {}, subset: {subset}}}, weight: {weight}}}", host("cart"))
    };
    let routes = format!("  http:\n  - route:\n{}\n{}", weighted("v1", 90), weighted("v2", 10));
    let (mesh, _v1, _v2) = two_versions(transport, &routes).await;
    let counts = mesh.counted("cart", 1000).await;
    let canary = counts.get("v2").copied().unwrap_or_default();
    // Five standard deviations around 100.
    assert!((53..=147).contains(&canary), "{counts:?}");
    assert_eq!(counts.values().sum::<usize>(), 1000, "{counts:?}");
    mesh.assert_settled().await;
}

async fn headers_and_paths_choose_the_version(transport: XdsTransport) {
    let routes = format!(
        "  http:\n  - match: [{{headers: {{x-user: {{exact: tester}}}}}}]\n    route: [{v2}]\n\
         \x20 - match: [{{uri: {{prefix: /beta}}}}, {{uri: {{regex: '/v[23]/.*'}}}}]\n    route: [{v2}]\n\
         \x20 - match: [{{uri: {{exact: /OLD}}, ignoreUriCase: true}}]\n    route: [{v1}]\n\
         \x20 - match: [{{queryParams: {{version: {{exact: '2'}}}}}}]\n    route: [{v2}]\n\
         \x20 - route: [{v1}]",
        v1 = to("v1"),
        v2 = to("v2")
    );
    let (mesh, _v1, _v2) = two_versions(transport, &routes).await;
    let expected =
        [("/", "v1"), ("/beta/x", "v2"), ("/v2/x", "v2"), ("/v4/x", "v1"), ("/old", "v1"), ("/?version=2", "v2")];
    for (path, version) in expected {
        assert_eq!(mesh.get("cart", path).await.backend(), version, "{path}");
    }
    assert_eq!(mesh.get_with("cart", "/", &[("x-user", "tester")]).await.backend(), "v2");
    mesh.assert_settled().await;
}

async fn uri_and_authority_are_rewritten(transport: XdsTransport) {
    let routes = format!(
        "  http:\n  - match: [{{uri: {{prefix: /shop/}}}}]\n    rewrite: {{uri: /, authority: inner.example}}\n    \
         headers: {{request: {{set: {{x-by: mesh}}}}, response: {{add: {{x-out: mesh}}}}}}\n    route: [{v1}]\n\
         \x20 - route: [{v1}]",
        v1 = to("v1")
    );
    let (mesh, _v1, _v2) = two_versions(transport, &routes).await;
    let reply = mesh.get("cart", "/shop/item/7").await;
    let seen = reply.json();
    assert_eq!((&seen["path"], &seen["authority"]), (&"/item/7".into(), &"inner.example".into()));
    assert_eq!((&seen["headers"]["x-by"], reply.header("x-out")), (&"mesh".into(), "mesh"));
    mesh.assert_settled().await;
}

async fn redirect_and_direct_response_need_no_backend(transport: XdsTransport) {
    let routes = format!(
        "  http:\n  - match: [{{uri: {{exact: /moved}}}}]\n    redirect: {{uri: /new, authority: new.example, redirectCode: 302}}\n\
         \x20 - match: [{{uri: {{exact: /closed}}}}]\n    directResponse: {{status: 418, body: {{string: closed today}}}}\n\
         \x20 - route: [{v1}]",
        v1 = to("v1")
    );
    let (mesh, v1, v2) = two_versions(transport, &routes).await;
    let moved = mesh.get("cart", "/moved").await;
    assert_eq!((moved.status.as_u16(), moved.header("location")), (302, "http://new.example/new"));
    let closed = mesh.get("cart", "/closed").await;
    assert_eq!((closed.status.as_u16(), closed.body.as_str()), (418, "closed today"));
    assert_eq!(v1.requests() + v2.requests(), 0);
    mesh.assert_settled().await;
}

async fn mirror_sees_every_request(transport: XdsTransport) {
    let routes = format!(
        "  http:\n  - route: [{v1}]\n    mirror: {{host: {}, subset: v2}}\n    mirrorPercentage: {{value: 100}}",
        host("cart"),
        v1 = to("v1")
    );
    let (mesh, v1, v2) = two_versions(transport, &routes).await;
    let counts = mesh.counted("cart", 20).await;
    assert_eq!(counts, [("v1".to_owned(), 20)].into());
    wait::until("20 mirrored requests", async || {
        let seen = v2.requests();
        if seen == 20 { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;
    assert_eq!(v1.requests(), 20);
    mesh.assert_settled().await;
}
