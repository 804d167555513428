//! Two sidecars and the certificates between them.

use testkit::backend::HttpBackend;
use testkit::certificates::Authority;
use testkit::client;
use testkit::envoy::{Envoy, XdsTransport};
use testkit::error::ReplyError;
use testkit::sds::{SdsSecrets, SdsServer};
use testkit::tls::{MESH_HTTP, TlsClient};
use testkit::wait;

use super::{inbound, mode};
use crate::mesh::{Mesh, caller, envoy, host, service, service_port};

testkit::over_both!(peer_authentication_modes_decide_who_may_call, server_with_another_identity_is_not_trusted);

const CALLER: &str = "spiffe://cluster.local/ns/outside/sa/client";

/// A calling sidecar and a called sidecar.
struct Pair {
    server: Mesh,
    /// Address of the caller's sidecar for calls to `cart.shop`.
    outbound: std::net::SocketAddr,
    backend: HttpBackend,
    authority: Authority,
    _caller: (Envoy, Option<SdsServer>),
}

impl Pair {
    /// The server presents the certificate of this service account of `shop`; the mesh expects `cart`.
    async fn start(transport: XdsTransport, account: &str, first: &str) -> Pair {
        let (backend, authority) = (HttpBackend::start("cart").await, Authority::new());
        let (port, inside) = (service_port(), service_port());
        let endpoint = format!(
            "  - {{address: 127.0.0.1, ports: {{http: {inside}}}, serviceAccount: cart, \
             labels: {{app: cart, security.istio.io/tlsMode: istio}}}}"
        );
        let documents = [service("cart", port, "HTTP", "http", &endpoint), inbound(inside, "HTTP", backend.port())];
        let own = authority.workload(&format!("spiffe://cluster.local/ns/shop/sa/{account}"));
        let secrets = SdsSecrets::of_workload(&own, &authority);
        let server = Mesh::secured(transport, inside, &documents, "{}\n", secrets).await;
        // A separate file, because it changes later.
        server.discovery.write("mode.yaml", &mode(first));
        let secrets = SdsSecrets::of_workload(&authority.workload(CALLER), &authority);
        let caller = envoy(caller(&server.discovery, transport), Some(secrets)).await;
        let outbound = ([127, 0, 0, 1], port).into();
        Pair { server, outbound, backend, authority, _caller: caller }
    }

    /// Status through the caller's sidecar, and the caller identity that the workload received.
    async fn call(&self) -> Result<(u16, String), String> {
        let reply = client::get(self.outbound, &host("cart"), "/").await?;
        let seen = reply.json()["headers"]["x-forwarded-client-cert"].as_str().unwrap_or_default().to_owned();
        let caller = seen.split(';').find_map(|part| part.strip_prefix("URI=")).unwrap_or_default().to_owned();
        Ok((reply.status.as_u16(), caller))
    }

    async fn calls_as(&self, wanted: &str) {
        wait::until(&format!("a call as {wanted:?}"), async || {
            let got = self.call().await?;
            if got == (200, wanted.to_owned()) { Ok(()) } else { Err(format!("{got:?}")) }
        })
        .await;
    }

    /// Results of a caller without a sidecar: in plain text, and with a certificate of the mesh.
    async fn direct(&self) -> (Option<u16>, Option<u16>) {
        let plain = client::get(self.server.address, &host("cart"), "/").await;
        let own = self.authority.workload(CALLER);
        let tls = TlsClient::new(&self.authority, Some(&own), MESH_HTTP);
        let tls = tls.get(self.server.address, "", &host("cart"), "/").await;
        let status = |reply: Result<client::Reply, ReplyError>| reply.ok().map(|reply| reply.status.as_u16());
        (status(plain), status(tls))
    }

    async fn takes(&self, wanted: (Option<u16>, Option<u16>)) {
        wait::until(&format!("plain text and TLS {wanted:?}"), async || {
            let got = self.direct().await;
            if got == wanted { Ok(()) } else { Err(format!("{got:?}")) }
        })
        .await;
    }
}

async fn peer_authentication_modes_decide_who_may_call(transport: XdsTransport) {
    let pair = Pair::start(transport, "cart", "STRICT").await;
    pair.calls_as(CALLER).await;
    pair.takes((None, Some(200))).await;

    pair.server.discovery.write("mode.yaml", &mode("PERMISSIVE"));
    pair.takes((Some(200), Some(200))).await;
    pair.calls_as(CALLER).await;

    pair.server.discovery.write("mode.yaml", &mode("DISABLE"));
    pair.takes((Some(200), None)).await;
    pair.calls_as("").await;

    pair.server.discovery.write("mode.yaml", &mode("STRICT"));
    pair.takes((None, Some(200))).await;
    pair.calls_as(CALLER).await;
    pair.server.assert_settled().await;
}

async fn server_with_another_identity_is_not_trusted(transport: XdsTransport) {
    let pair = Pair::start(transport, "impostor", "STRICT").await;
    // The server is up and serves callers that do not verify its identity.
    pair.takes((None, Some(200))).await;
    let reached = pair.backend.requests();
    wait::until("an answer of the sidecar", async || {
        let (status, _) = pair.call().await?;
        if status == 503 { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
    assert_eq!(pair.backend.requests(), reached);
}
