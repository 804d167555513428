//! Policies on callers, by client certificate.

use testkit::backend::{HttpBackend, TcpBackend};
use testkit::certificates::Authority;
use testkit::client;
use testkit::envoy::XdsTransport;
use testkit::sds::SdsSecrets;
use testkit::tls::{MESH_BYTES, MESH_HTTP, TlsClient};
use testkit::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{inbound, mode};
use crate::mesh::{Mesh, service_port};

testkit::over_both!(
    callers_are_distinguished_by_certificate,
    cve_2020_16844_connections_are_distinguished_by_certificate
);

/// Namespace and service account under a trust domain; the last caller uses plain text without an identity.
const CALLERS: [&str; 5] = [
    "cluster.local/ns/shop/sa/front",
    "cluster.local/ns/shop/sa/other",
    "cluster.local/ns/ops/sa/front",
    "old-td/ns/shop/sa/front",
    "",
];

/// A path, its allowed principals, and whether each of the callers is allowed.
const RULES: &[(&str, &str, [u16; 5])] = &[
    ("/exact", "{principals: [cluster.local/ns/shop/sa/front]}", [200, 403, 403, 200, 403]),
    ("/suffix", "{principals: ['*/sa/front']}", [200, 403, 200, 200, 403]),
    // As in upstream, trust domain aliases apply to complete identities only.
    ("/prefix", "{principals: ['cluster.local/ns/shop/*']}", [200, 200, 403, 403, 403]),
    ("/whole", "{principals: ['cluster.local/ns/shop/sa/*']}", [200, 200, 403, 200, 403]),
    ("/any", "{principals: ['*']}", [200, 200, 200, 200, 403]),
    ("/not", "{principals: ['*'], notPrincipals: [cluster.local/ns/shop/sa/front]}", [403, 200, 200, 403, 403]),
    ("/only-not", "{notPrincipals: [cluster.local/ns/shop/sa/front]}", [403, 200, 200, 403, 200]),
    ("/namespace", "{namespaces: [shop]}", [200, 200, 403, 200, 403]),
    ("/namespaces", "{namespaces: [sho, ops, 'sh*']}", [200, 200, 200, 200, 403]),
    ("/part", "{namespaces: [sho]}", [403, 403, 403, 403, 403]),
    ("/not-namespace", "{notNamespaces: [shop]}", [403, 403, 200, 403, 200]),
    ("/case", "{principals: [cluster.local/ns/shop/sa/Front]}", [403, 403, 403, 403, 403]),
];

fn policy(rules: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: callers, namespace: shop}}\n\
         spec:\n  selector: {{matchLabels: {{app: cart}}}}\n  action: ALLOW\n  rules:\n{rules}\n"
    )
}

const MESH: &str = "trustDomain: cluster.local\ntrustDomainAliases: [old-td]\n";

async fn callers_are_distinguished_by_certificate(transport: XdsTransport) {
    let (backend, authority) = (HttpBackend::start("cart").await, Authority::new());
    let port = service_port();
    let rules: Vec<String> = RULES
        .iter()
        .map(|(path, from, _)| format!("  - {{from: [{{source: {from}}}], to: [{{operation: {{paths: [{path}]}}}}]}}"))
        .collect();
    let documents = [inbound(port, "HTTP", backend.port()), mode("PERMISSIVE"), policy(&rules.join("\n"))];
    let own = authority.workload("spiffe://cluster.local/ns/shop/sa/cart");
    let secrets = SdsSecrets::of_workload(&own, &authority);
    let mesh = Mesh::secured(transport, port, &documents, MESH, secrets).await;
    let caller = |name: &str| {
        let own = authority.workload(&format!("spiffe://{name}"));
        TlsClient::new(&authority, Some(&own), MESH_HTTP)
    };
    let callers = CALLERS.map(|name| (!name.is_empty()).then(|| caller(name)));
    let mut wrong = Vec::new();
    for (path, from, expected) in RULES {
        for ((name, caller), wanted) in CALLERS.iter().zip(&callers).zip(expected) {
            let got = match caller {
                Some(caller) => caller.get(mesh.address, "", "cart.example", path).await,
                None => client::get(mesh.address, "cart.example", path).await,
            };
            let got = got.map(|reply| reply.status.as_u16());
            if got != Ok(*wanted) {
                wrong.push(format!("{path} {from} for {name:?}: wanted {wanted}, got {got:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Signed by our CA, but the trust domain is unknown.
    let foreign = caller("evil-td/ns/shop/sa/front").get(mesh.address, "", "cart.example", "/any").await;
    assert!(foreign.is_err(), "{foreign:?}");
    mesh.assert_settled().await;
}

async fn cve_2020_16844_connections_are_distinguished_by_certificate(transport: XdsTransport) {
    let (backend, authority) = (TcpBackend::start("store").await, Authority::new());
    let port = service_port();
    let rules = format!(
        "  - {{from: [{{source: {{principals: ['*/sa/front']}}}}], \
         to: [{{operation: {{ports: ['{port}']}}}}]}}\n  \
         - {{from: [{{source: {{namespaces: [ops]}}}}]}}"
    );
    let documents = [inbound(port, "TCP", backend.port()), mode("STRICT"), policy(&rules)];
    let own = authority.workload("spiffe://cluster.local/ns/shop/sa/cart");
    let secrets = SdsSecrets::of_workload(&own, &authority);
    let mesh = Mesh::secured(transport, port, &documents, MESH, secrets).await;
    let echoes = async |name: &str| {
        let own = authority.workload(&format!("spiffe://{name}"));
        let client = TlsClient::new(&authority, Some(&own), MESH_BYTES);
        let mut stream = wait::until("a connection", async || Ok(client.connect(mesh.address, "").await?)).await;
        let mut all = Vec::new();
        if stream.write_all(b"ping").await.is_err() {
            return false;
        }
        let mut bytes = [0; 64];
        // The backend sends its name first; a denied caller sees the end of the connection.
        while let Ok(read @ 1..) = stream.read(&mut bytes).await {
            all.extend_from_slice(&bytes[..read]);
            if all.ends_with(b"ping") {
                return true;
            }
        }
        false
    };
    let [front, other, ops, old, _] = CALLERS;
    assert!(echoes(front).await && echoes(old).await && echoes(ops).await);
    assert!(!echoes(other).await);
    mesh.assert_settled().await;
}
