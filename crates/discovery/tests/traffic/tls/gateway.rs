//! Gateways that terminate TLS, with and without client certificates.

use testkit::backend::{HttpBackend, TcpBackend, greeted};
use testkit::certificates::Authority;
use testkit::envoy::XdsTransport;
use testkit::sds::SdsSecrets;
use testkit::tls::TlsClient;
use testkit::wait;

use crate::gateway::{all_to, bound};
use crate::mesh::{Mesh, host, http_service, service, service_port};

testkit::over_both!(
    each_host_has_its_own_certificate,
    mutual_tls_needs_a_trusted_client_certificate,
    tls_is_terminated_for_tcp_too,
);

/// A Gateway document; `servers` are port and rest of each.
fn gateway(servers: &[String]) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: edge, namespace: istio-system}}\n\
         spec:\n  selector: {{istio: ingressgateway}}\n  servers:\n{}\n",
        servers.join("\n")
    )
}

fn server(port: u16, name: &str, protocol: &str, host: &str, tls: &str) -> String {
    format!("  - {{port: {{number: {port}, name: {name}, protocol: {protocol}}}, hosts: [{host}], tls: {{{tls}}}}}")
}

fn files(name: &str) -> String {
    format!("serverCertificate: /certs/{name}.pem, privateKey: /certs/{name}.key")
}

/// SDS names of these files.
fn secret(name: &str) -> String {
    format!("file-cert:/certs/{name}.pem~/certs/{name}.key")
}

async fn each_host_has_its_own_certificate(transport: XdsTransport) {
    let authority = Authority::new();
    let (edge, port) = (service_port(), service_port());
    let (one, two) = (HttpBackend::start("one").await, HttpBackend::start("two").await);
    let simple = |name: &str| {
        let tls = format!("mode: SIMPLE, {}", files(name));
        server(edge, name, "HTTPS", &format!("{name}.example"), &tls)
    };
    let documents = [
        gateway(&[simple("one"), simple("two")]),
        http_service("one", port, &[&one], &["v1"]),
        http_service("two", port, &[&two], &["v1"]),
        bound("one", "one.example", &all_to("one")),
        bound("two", "two.example", &all_to("two")),
    ];
    let secrets = SdsSecrets::default()
        .with_certificate(&secret("one"), &authority.host("one.example"))
        .with_certificate(&secret("two"), &authority.host("two.example"));
    let mesh = Mesh::edge_with(transport, edge, &documents, Some(secrets)).await;
    let client = TlsClient::new(&authority, None, &[]);
    let get = async |name: &str, host: &str| {
        let reply = client.get(mesh.address, name, host, "/").await?;
        Ok::<_, String>((reply.status.as_u16(), reply.backend().to_owned()))
    };
    wait::until("certificates", async || get("one.example", "one.example").await.map(drop)).await;
    // The client verifies the certificate against the requested name.
    assert_eq!(get("one.example", "one.example").await, Ok((200, "one".to_owned())));
    assert_eq!(get("two.example", "two.example").await, Ok((200, "two".to_owned())));
    // A connection with one host's certificate does not reach another host.
    assert_eq!(get("one.example", "two.example").await, Ok((404, String::new())));
    assert!(get("three.example", "one.example").await.is_err(), "no server has this name");
    let plain = testkit::client::get(mesh.address, "one.example", "/").await;
    assert!(plain.is_err(), "{plain:?}");
    mesh.assert_settled().await;
}

async fn mutual_tls_needs_a_trusted_client_certificate(transport: XdsTransport) {
    let (authority, clients, strangers) = (Authority::new(), Authority::new(), Authority::new());
    let (edge, port) = (service_port(), service_port());
    let cart = HttpBackend::start("cart").await;
    let tls = format!("mode: MUTUAL, {}, caCertificates: /certs/clients.pem", files("cart"));
    let documents = [
        gateway(&[server(edge, "cart", "HTTPS", "cart.example", &tls)]),
        http_service("cart", port, &[&cart], &["v1"]),
        bound("cart", "cart.example", &all_to("cart")),
    ];
    let secrets = SdsSecrets::default()
        .with_certificate(&secret("cart"), &authority.host("cart.example"))
        .with_roots("file-root:/certs/clients.pem", &clients);
    let mesh = Mesh::edge_with(transport, edge, &documents, Some(secrets)).await;
    let get = async |own: Option<&testkit::certificates::Certificate>| {
        let client = TlsClient::new(&authority, own, &[]);
        client.get(mesh.address, "cart.example", "cart.example", "/").await.map(|reply| reply.status.as_u16())
    };
    let known = clients.workload("spiffe://partner/ns/shop/sa/buyer");
    wait::until("certificates", async || Ok(get(Some(&known)).await.map(drop)?)).await;
    assert_eq!(get(Some(&known)).await, Ok(200));
    let reached = cart.requests();
    for (who, refused) in [
        ("a client without a certificate", None),
        ("a stranger", Some(strangers.workload("spiffe://partner/ns/shop/sa/buyer"))),
    ] {
        let got = get(refused.as_ref()).await;
        assert!(got.is_err(), "{who} got {got:?}");
    }
    assert_eq!(cart.requests(), reached);
    mesh.assert_settled().await;
}

async fn tls_is_terminated_for_tcp_too(transport: XdsTransport) {
    let authority = Authority::new();
    let (edge, port) = (service_port(), service_port());
    let store = TcpBackend::start("store").await;
    let endpoints = format!("  - {{address: 127.0.0.1, ports: {{tcp: {}}}}}", store.port());
    let routes = format!(
        "  tcp:\n  - match: [{{port: {edge}}}]\n    route: [{{destination: {{host: {}, port: {{number: {port}}}}}}}]",
        host("store")
    );
    let documents = [
        gateway(&[server(edge, "store", "TLS", "store.example", &format!("mode: SIMPLE, {}", files("store")))]),
        service("store", port, "TCP", "tcp", &endpoints),
        bound("store", "store.example", &routes),
    ];
    let secrets = SdsSecrets::default().with_certificate(&secret("store"), &authority.host("store.example"));
    let mesh = Mesh::edge_with(transport, edge, &documents, Some(secrets)).await;
    let client = TlsClient::new(&authority, None, &[]);
    let stream = wait::until("certificates", async || Ok(client.connect(mesh.address, "store.example").await?)).await;
    assert_eq!(greeted(stream).await, "store");
    mesh.assert_settled().await;
}
