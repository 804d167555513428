//! CUSTOM policies: an authorization server of the mesh decides.

use testkit::backend::{ALLOW_HEADER, AuthzBackend, HttpBackend};
use testkit::client;
use testkit::envoy::XdsTransport;
use testkit::wait;

use super::mode;
use crate::mesh::{Mesh, service_port};

testkit::over_both!(
    grpc_authorization_server_decides,
    http_authorization_server_decides,
    an_unreachable_server_denies_unless_fail_open
);

/// Expected status, path and headers.
type Row<'a> = (u16, &'a str, &'a [(&'a str, &'a str)]);

/// A workload with a CUSTOM policy that calls `checker.shop` through a provider of this name.
struct Checked {
    mesh: Mesh,
    backend: HttpBackend,
    checker: AuthzBackend,
}

impl Checked {
    async fn start(transport: XdsTransport, provider: &str) -> Checked {
        let (backend, checker) = (HttpBackend::start("cart").await, AuthzBackend::start().await);
        let [port, grpc, http] = [(); 3].map(|()| service_port());
        let documents =
            [mode("DISABLE"), workload(port, backend.port()), service(grpc, http, checker.port()), policy(provider)];
        let mesh = Mesh::server(transport, port, &documents, &providers(grpc, http)).await;
        Checked { mesh, backend, checker }
    }

    async fn status(&self, path: &str, headers: &[(&str, &str)]) -> u16 {
        let reply = client::get_with(self.mesh.address, "cart.example", path, headers).await;
        reply.unwrap_or_else(|e| panic!("{path}: {e}")).status.as_u16()
    }
}

/// A Sidecar that accepts calls and may call the authorization server.
fn workload(port: u16, backend: u16) -> String {
    super::inbound(port, "HTTP", backend).replace("'~/*'", "shop/checker.shop.svc.cluster.local")
}

fn service(grpc: u16, http: u16, checker: u16) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: checker, namespace: shop}}\nspec:\n  \
         hosts: [checker.shop.svc.cluster.local]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  ports:\n  \
         - {{name: grpc, number: {grpc}, protocol: GRPC}}\n  - {{name: http, number: {http}, protocol: HTTP}}\n  \
         endpoints: [{{address: 127.0.0.1, ports: {{grpc: {checker}, http: {checker}}}}}]\n"
    )
}

fn providers(grpc: u16, http: u16) -> String {
    let service = "service: checker.shop.svc.cluster.local";
    format!(
        "extensionProviders:\n- {{name: by-grpc, envoyExtAuthzGrpc: {{{service}, port: {grpc}, timeout: 5s}}}}\n\
         - {{name: by-http, envoyExtAuthzHttp: {{{service}, port: {http}, timeout: 5s, pathPrefix: /check, \
         includeRequestHeadersInCheck: [{}]}}}}\n\
         - {{name: careless, envoyExtAuthzHttp: {{{service}, port: {http}, timeout: 5s, failOpen: true, \
         includeRequestHeadersInCheck: [{}]}}}}\n",
        ALLOW_HEADER.0, ALLOW_HEADER.0
    )
}

fn policy(provider: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: ask, namespace: shop}}\n\
         spec:\n  selector: {{matchLabels: {{app: cart}}}}\n  action: CUSTOM\n  provider: {{name: {provider}}}\n  \
         rules: [{{to: [{{operation: {{paths: [/asked*]}}}}]}}]\n---\n\
         apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: never, namespace: shop}}\n\
         spec:\n  selector: {{matchLabels: {{app: cart}}}}\n  action: DENY\n  \
         rules: [{{to: [{{operation: {{paths: [/asked/never]}}}}]}}]\n"
    )
}

async fn grpc_authorization_server_decides(transport: XdsTransport) {
    is_asked(transport, "by-grpc").await;
}

async fn http_authorization_server_decides(transport: XdsTransport) {
    is_asked(transport, "by-http").await;
}

async fn is_asked(transport: XdsTransport, provider: &str) {
    let checked = Checked::start(transport, provider).await;
    wait::until("the authorization server to be reached", async || {
        match checked.status("/asked", &[ALLOW_HEADER]).await {
            200 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
    let (asked, reached) = (checked.checker.checks(), checked.backend.requests());
    let rows: &[Row<'_>] = &[
        (200, "/asked", &[ALLOW_HEADER]),
        (403, "/asked", &[]),
        (403, "/asked", &[(ALLOW_HEADER.0, "out")]),
        (200, "/asked/more", &[ALLOW_HEADER]),
        (403, "/asked/more", &[]),
        (200, "/free", &[]),
        (200, "/free", &[ALLOW_HEADER]),
        // The server's approval does not override a DENY policy.
        (403, "/asked/never", &[ALLOW_HEADER]),
        (403, "/asked/never", &[]),
    ];
    for (wanted, path, headers) in rows {
        assert_eq!(checked.status(path, headers).await, *wanted, "{path} {headers:?}");
    }
    assert_eq!(checked.checker.checks() - asked, 7, "only requests that the policy matches are checked");
    assert_eq!(checked.backend.requests() - reached, 4);
    checked.mesh.assert_settled().await;
}

async fn an_unreachable_server_denies_unless_fail_open(transport: XdsTransport) {
    for (provider, wanted) in [("by-http", 403), ("careless", 200)] {
        let Checked { mesh, backend, checker } = Checked::start(transport, provider).await;
        drop(checker);
        wait::until("the checker to be gone", async || {
            let got = client::get(mesh.address, "cart.example", "/asked").await?.status.as_u16();
            if got == wanted { Ok(()) } else { Err(got.to_string()) }
        })
        .await;
        let got =
            client::get_with(mesh.address, "cart.example", "/asked", &[ALLOW_HEADER]).await.map(|r| r.status.as_u16());
        assert_eq!(got, Ok(wanted), "{provider}");
        assert_eq!(backend.requests() > 0, wanted == 200);
    }
}
