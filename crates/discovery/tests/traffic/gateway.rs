//! Requests through a gateway. Sidecars are in `routes.rs`, gateways that terminate TLS in `tls/gateway.rs`.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use testkit::backend::{HttpBackend, TcpBackend, greeted};
use testkit::client::{self, Reply};
use testkit::envoy::XdsTransport;
use testkit::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::mesh::{Mesh, SUBSETS, destination_rule, host, http_service, service, service_port};

testkit::over_both!(
    two_hosts_share_one_port,
    plain_requests_are_sent_to_https,
    tcp_port_reaches_its_service,
    server_name_chooses_the_tls_backend,
    weights_and_rewrites_apply_at_a_gateway,
    virtual_service_comes_and_goes,
);

/// A Gateway document of one server on this port; `rest` is what follows in the server's braces.
fn gateway(port: u16, protocol: &str, rest: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: edge, namespace: istio-system}}\n\
         spec:\n  selector: {{istio: ingressgateway}}\n  servers:\n  \
         - {{port: {{number: {port}, name: p, protocol: {protocol}}}, {rest}}}\n"
    )
}

/// A VirtualService document of that Gateway for one host; `routes` are the lines of its spec after those.
pub(crate) fn bound(name: &str, host: &str, routes: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec:\n  hosts: ['{host}']\n  gateways: [istio-system/edge]\n{routes}\n"
    )
}

pub(crate) fn all_to(service: &str) -> String {
    format!("  http:\n  - route: [{{destination: {{host: {}}}}}]", host(service))
}

async fn get(mesh: &Mesh, host: &str, path: &str) -> Reply {
    client::get(mesh.address, host, path).await.unwrap_or_else(|e| panic!("{host}{path}: {e}"))
}

/// Waits until GET / of a host has this status.
async fn status(mesh: &Mesh, host: &str, wanted: u16) {
    wait::until(&format!("status {wanted} of {host}"), async || {
        let got = client::get(mesh.address, host, "/").await?.status.as_u16();
        if got == wanted { Ok(()) } else { Err(got.to_string()) }
    })
    .await;
}

async fn two_hosts_share_one_port(transport: XdsTransport) {
    let (cart, reviews) = (HttpBackend::start("cart").await, HttpBackend::start("reviews").await);
    let (edge, port) = (service_port(), service_port());
    let documents = [
        gateway(edge, "HTTP", "hosts: [cart.example, '*.reviews.example']"),
        http_service("cart", port, &[&cart], &["v1"]),
        http_service("reviews", port, &[&reviews], &["v1"]),
        bound("cart", "cart.example", &all_to("cart")),
        bound("reviews", "*.reviews.example", &all_to("reviews")),
        bound("elsewhere", "elsewhere.example", &all_to("cart")),
    ];
    let mesh = Mesh::edge(transport, edge, &documents).await;
    let expected = [
        ("cart.example", 200, "cart"),
        ("CART.example", 200, "cart"),
        (&format!("cart.example:{edge}"), 200, "cart"),
        ("new.reviews.example", 200, "reviews"),
        ("reviews.example", 404, ""),
        // A host that the Gateway does not list is not served, even if a VirtualService names it.
        ("elsewhere.example", 404, ""),
        // Nor is the service's own name.
        (&host("cart"), 404, ""),
    ];
    for (host, status, backend) in expected {
        let reply = get(&mesh, host, "/").await;
        assert_eq!((reply.status.as_u16(), reply.backend()), (status, backend), "{host}");
    }
    mesh.assert_settled().await;
}

async fn plain_requests_are_sent_to_https(transport: XdsTransport) {
    let cart = HttpBackend::start("cart").await;
    let (edge, port) = (service_port(), service_port());
    let documents = [
        gateway(edge, "HTTP", "hosts: [cart.example], tls: {httpsRedirect: true}"),
        http_service("cart", port, &[&cart], &["v1"]),
        bound("cart", "cart.example", &all_to("cart")),
    ];
    let mesh = Mesh::edge(transport, edge, &documents).await;
    let reply = get(&mesh, "cart.example", "/basket?item=7").await;
    assert_eq!(
        (reply.status.as_u16(), reply.header("location")),
        (301, "https://cart.example/basket?item=7"),
        "{reply:?}"
    );
    assert_eq!(cart.requests(), 0);
    mesh.assert_settled().await;
}

async fn tcp_port_reaches_its_service(transport: XdsTransport) {
    let store = TcpBackend::start("store").await;
    let (edge, port) = (service_port(), service_port());
    let endpoints = format!("  - {{address: 127.0.0.1, ports: {{tcp: {}}}}}", store.port());
    let routes = format!(
        "  tcp:\n  - match: [{{port: {edge}}}]\n    route: [{{destination: {{host: {}, port: {{number: {port}}}}}}}]",
        host("store")
    );
    let documents = [
        gateway(edge, "TCP", "hosts: ['*']"),
        service("store", port, "TCP", "tcp", &endpoints),
        bound("store", "*", &routes),
    ];
    let mesh = Mesh::edge(transport, edge, &documents).await;
    let stream = TcpStream::connect(mesh.address).await.expect("the port is open");
    assert_eq!(greeted(stream).await, "store");
    mesh.assert_settled().await;
}

async fn server_name_chooses_the_tls_backend(transport: XdsTransport) {
    let (mut tasks, mut roots) = (JoinSet::new(), RootCertStore::empty());
    let (edge, port) = (service_port(), service_port());
    let mut documents = vec![gateway(edge, "TLS", "hosts: ['*.example'], tls: {mode: PASSTHROUGH}")];
    for name in ["one", "two"] {
        let sni = format!("{name}.example");
        let backend = tls_backend(&mut tasks, &sni, &mut roots).await;
        let endpoints = format!("  - {{address: 127.0.0.1, ports: {{tls: {}}}}}", backend.port());
        documents.push(service(name, port, "TLS", "tls", &endpoints));
        let routes = format!(
            "  tls:\n  - match: [{{port: {edge}, sniHosts: [{sni}]}}]\n    route: [{{destination: {{host: {}}}}}]",
            host(name)
        );
        documents.push(bound(name, &sni, &routes));
    }
    let mesh = Mesh::edge(transport, edge, &documents).await;
    let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let client = TlsConnector::from(Arc::new(client));
    // The certificate is the backend's, so TLS was not terminated on the way.
    for sni in ["one.example", "two.example"] {
        assert_eq!(greeting(&client, mesh.address, sni).await.as_deref(), Ok(sni));
    }
    let unknown = greeting(&client, mesh.address, "three.example").await;
    assert!(unknown.is_err(), "{unknown:?}");
    mesh.assert_settled().await;
}

/// A TLS server that sends its name and closes the connection.
async fn tls_backend(tasks: &mut JoinSet<()>, name: &str, roots: &mut RootCertStore) -> SocketAddr {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate can be made");
    let certificate = CertificateDer::from(made.cert.der().to_vec());
    roots.add(certificate.clone()).expect("the certificate is its own root");
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("the key is PKCS 8");
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key);
    let acceptor = TlsAcceptor::from(Arc::new(config.expect("key and certificate match")));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    let name = name.to_owned();
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(mut stream) = acceptor.accept(stream).await {
                let _ = stream.write_all(name.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        }
    });
    address
}

/// Everything that the server of this name sends after a verified handshake.
async fn greeting(client: &TlsConnector, address: SocketAddr, sni: &str) -> Result<String, String> {
    let stream = TcpStream::connect(address).await.map_err(|e| e.to_string())?;
    let name = ServerName::try_from(sni.to_owned()).map_err(|e| e.to_string())?;
    let mut stream = client.connect(name, stream).await.map_err(|e| e.to_string())?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.map_err(|e| e.to_string())?;
    Ok(text)
}

async fn weights_and_rewrites_apply_at_a_gateway(transport: XdsTransport) {
    let (v1, v2) = (HttpBackend::start("v1").await, HttpBackend::start("v2").await);
    let (edge, port) = (service_port(), service_port());
    let to = |subset: &str, weight: u32| {
        format!("{{destination: {{host: {}, subset: {subset}}}, weight: {weight}}}", host("cart"))
    };
    let routes = format!(
        "  http:\n  - match: [{{uri: {{prefix: /shop/}}}}]\n    rewrite: {{uri: /, authority: inner.example}}\n    \
         route: [{}]\n  - route: [{}, {}]",
        to("v2", 100),
        to("v1", 75),
        to("v2", 25)
    );
    let documents = [
        gateway(edge, "HTTP", "hosts: ['*']"),
        http_service("cart", port, &[&v1, &v2], &["v1", "v2"]),
        destination_rule("cart", SUBSETS),
        bound("cart", "cart.example", &routes),
    ];
    let mesh = Mesh::edge(transport, edge, &documents).await;
    let seen = get(&mesh, "cart.example", "/shop/item/7").await.json();
    let [backend, path, authority] = ["backend", "path", "authority"].map(|key| seen[key].as_str().unwrap_or_default());
    assert_eq!((backend, path, authority), ("v2", "/item/7", "inner.example"));
    let before = v2.requests();
    for _ in 0..400 {
        assert_eq!(get(&mesh, "cart.example", "/").await.status.as_u16(), 200);
    }
    let canary = v2.requests() - before;
    // Five standard deviations around 100.
    assert!((57..=143).contains(&canary), "{canary} of 400");
    assert_eq!(v1.requests() + canary, 400);
    mesh.assert_settled().await;
}

async fn virtual_service_comes_and_goes(transport: XdsTransport) {
    let cart = HttpBackend::start("cart").await;
    let (edge, port) = (service_port(), service_port());
    let documents = [gateway(edge, "HTTP", "hosts: ['*.example']"), http_service("cart", port, &[&cart], &["v1"])];
    let mesh = Mesh::edge(transport, edge, &documents).await;
    status(&mesh, "cart.example", 404).await;
    mesh.discovery.write("cart.yaml", &bound("cart", "cart.example", &all_to("cart")));
    status(&mesh, "cart.example", 200).await;
    assert_eq!(get(&mesh, "other.example", "/").await.status.as_u16(), 404);
    mesh.discovery.remove("cart.yaml");
    status(&mesh, "cart.example", 404).await;
    mesh.assert_settled().await;
}
