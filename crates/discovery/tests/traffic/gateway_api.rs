//! Requests on routes of the Kubernetes Gateway API, read from files without a cluster.

use testkit::backend::HttpBackend;
use testkit::client;
use testkit::envoy::XdsTransport;
use testkit::wait;

use crate::mesh::{Mesh, host, http_service, service_port};

testkit::over_both!(listener_and_routes_serve_a_host, a_route_with_a_service_as_parent_applies_to_callers,);

/// A Gateway on this port for routes of every namespace, and the service of its Envoy.
fn gateway(port: u16) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: edge, namespace: istio-system}}\n\
         spec:\n  hosts: [edge.istio-system.svc.cluster.local]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
         ports: [{{name: http, number: {port}, protocol: HTTP}}]\n  endpoints: [{{address: 127.0.0.1}}]\n---\n\
         apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: edge, namespace: istio-system}}\n\
         spec:\n  gatewayClassName: istio\n  addresses: [{{type: Hostname, value: edge}}]\n  listeners:\n  \
         - {{name: web, port: {port}, protocol: HTTP, hostname: '*.example', \
         allowedRoutes: {{namespaces: {{from: All}}}}}}\n"
    )
}

/// An HTTPRoute of namespace shop; `spec` are the lines of its spec.
fn route(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec:\n{spec}\n"
    )
}

async fn listener_and_routes_serve_a_host(transport: XdsTransport) {
    let (cart, reviews) = (HttpBackend::start("cart").await, HttpBackend::start("reviews").await);
    let (edge, port) = (service_port(), service_port());
    let routes = format!(
        "  parentRefs: [{{name: edge, namespace: istio-system}}]\n  hostnames: [shop.example, shop.other]\n  rules:\n  \
         - {{matches: [{{path: {{value: /}}}}], backendRefs: [{{name: cart, port: {port}}}]}}\n  \
         - {{matches: [{{path: {{value: /reviews}}}}], backendRefs: [{{name: reviews, port: {port}}}]}}\n  \
         - {{matches: [{{path: {{type: Exact, value: /old}}}}], \
         filters: [{{type: RequestRedirect, requestRedirect: {{hostname: new.example}}}}]}}\n  \
         - {{matches: [{{path: {{value: /nowhere}}}}], backendRefs: [{{name: ghost, port: 80}}]}}\n"
    );
    let documents = [
        gateway(edge),
        http_service("cart", port, &[&cart], &["v1"]),
        http_service("reviews", port, &[&reviews], &["v1"]),
        route("shop", &routes),
    ];
    let mesh = Mesh::edge(transport, edge, &documents).await;
    let expected = [
        ("shop.example", "/", 200, "cart"),
        ("shop.example", "/reviews/7", 200, "reviews"),
        // A prefix matches whole path elements.
        ("shop.example", "/reviewsx", 200, "cart"),
        ("shop.example", "/old", 302, ""),
        ("shop.example", "/nowhere", 500, ""),
        // The listener's host does not cover this one.
        ("shop.other", "/", 404, ""),
    ];
    for (host, path, status, backend) in expected {
        let reply = client::get(mesh.address, host, path).await.unwrap_or_else(|e| panic!("{host}{path}: {e}"));
        assert_eq!((reply.status.as_u16(), reply.backend()), (status, backend), "{host}{path}");
    }
    mesh.assert_settled().await;
}

async fn a_route_with_a_service_as_parent_applies_to_callers(transport: XdsTransport) {
    let (cart, reviews) = (HttpBackend::start("cart").await, HttpBackend::start("reviews").await);
    let port = service_port();
    let routes = format!(
        "  parentRefs: [{{group: '', kind: Service, name: cart}}]\n  rules:\n  \
         - {{matches: [{{headers: [{{name: x-beta, value: 'on'}}]}}], backendRefs: [{{name: reviews, port: {port}}}]}}\n  \
         - {{backendRefs: [{{name: cart, port: {port}}}]}}\n"
    );
    let documents = [
        http_service("cart", port, &[&cart], &["v1"]),
        http_service("reviews", port, &[&reviews], &["v1"]),
        route("cart", &routes),
    ];
    let mesh = Mesh::start(transport, port, &documents).await;
    wait::until("the route for beta callers", async || {
        let reply = client::get_with(mesh.address, &host("cart"), "/", &[("x-beta", "on")]).await?;
        if reply.backend() == "reviews" { Ok(()) } else { Err(format!("{} {}", reply.status, reply.backend())) }
    })
    .await;
    assert_eq!(mesh.get("cart", "/").await.backend(), "cart");
    mesh.assert_settled().await;
}
