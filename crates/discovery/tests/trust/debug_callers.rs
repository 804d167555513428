//! CVE-2026-31838: debug pages show the configuration of all namespaces. Callers by place and identity are tried on every
//! port with every page. Every address of 127.0.0.0/8 is loopback; a caller is elsewhere if it uses another address of this
//! machine.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use api::envoy::service::discovery::v3::DiscoveryRequest;
use http::Request;
use serde_json::json;
use testkit::client;
use testkit::tls::TlsClient;
use tokio::net::TcpStream;
use tonic::Code;

use crate::fixture::Mesh;
use crate::streams::{AdsStream, open_with};

/// Namespaces and service accounts of callers; none has no credentials.
const CALLERS: [Option<(&str, &str)>; 4] =
    [None, Some(("shop", "front")), Some(("bank", "teller")), Some(("istio-system", "istiod"))];
/// Pages of port 15014 that show the same as debug pages.
const MONITORING_PAGES: [&str; 4] = ["/debug", "/ui/", "/api/v1/proxies", "/api/v1/openapi.json"];
const SERVER: &str = "istiod.istio-system.svc";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum XdsPort {
    Plain,
    Secure,
}

/// A caller at an address of this machine.
struct Caller<'a> {
    mesh: &'a Mesh,
    address: IpAddr,
    namespace: &'a str,
    token: Option<String>,
}

impl Caller<'_> {
    fn new<'a>(mesh: &'a Mesh, address: IpAddr, identity: Option<(&'a str, &str)>) -> Caller<'a> {
        let token = |(namespace, account): (&str, &str)| {
            let subject = format!("system:serviceaccount:{namespace}:{account}");
            mesh.token_with(account, json!({"sub": subject}))
        };
        let namespace = identity.map_or("shop", |(namespace, _)| namespace);
        Caller { mesh, address, namespace, token: identity.map(token) }
    }

    fn at(&self, port: SocketAddr) -> SocketAddr {
        SocketAddr::new(self.address, port.port())
    }

    /// The status of a page.
    async fn page(&self, port: SocketAddr, path: &str) -> u16 {
        let mut request = Request::get(path).header("host", "localhost");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        client::send(self.at(port), request.body(String::new()).unwrap()).await.unwrap().status.as_u16()
    }

    /// Requests a page over xDS: the number of resources, or the status.
    async fn xds(&self, port: XdsPort, node_kind: &str, page: &str) -> Result<usize, Option<Code>> {
        let id = format!("{node_kind}~10.0.0.1~front.{0}~{0}.svc.cluster.local", self.namespace);
        let request = DiscoveryRequest {
            type_url: TypeUrl::DEBUG.to_string(),
            resource_names: vec![page.to_owned()],
            node: Some(Node { id, ..Node::default() }),
            ..DiscoveryRequest::default()
        };
        let token = self.token.as_deref();
        let mut stream: AdsStream = match port {
            XdsPort::Plain => {
                let stream = TcpStream::connect(self.at(self.mesh.server.grpc())).await.unwrap();
                open_with(stream, token, request).await
            }
            XdsPort::Secure => {
                let tls = TlsClient::trusting(&self.mesh.roots().await, None, &["h2"]);
                let stream = tls.connect(self.at(self.mesh.secure), SERVER).await.unwrap();
                open_with(stream, token, request).await
            }
        };
        stream.response().await.map(|response| response.resources.len())
    }
}

/// An address of this machine other than loopback: the one it would send from. Connecting a UDP socket sends nothing.
fn other_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

async fn page_names(mesh: &Mesh) -> Vec<String> {
    let mut names: Vec<String> = serde_json::from_str(&mesh.page("/debug/list").await).unwrap();
    names.push("list".to_owned());
    assert!(names.len() > 30, "{names:?}");
    names
}

#[tokio::test]
async fn cve_2026_31838_no_caller_elsewhere_reads_a_debug_page_on_any_port() {
    let Some(address) = other_address() else {
        return eprintln!("left out: this machine has no address but loopback");
    };
    let mesh = Mesh::start_open().await;
    let (names, mut tried) = (page_names(&mesh).await, 0);
    for identity in CALLERS {
        let caller = Caller::new(&mesh, address, identity);
        for name in &names {
            let path = format!("/debug/{name}");
            for port in [mesh.server.http(), mesh.server.monitoring()] {
                assert_eq!(caller.page(port, &path).await, 401, "{identity:?} on {port}: {path}");
            }
            for port in [XdsPort::Plain, XdsPort::Secure] {
                let is_unknown = port == XdsPort::Secure && identity.is_none();
                let expected = if is_unknown { Code::Unauthenticated } else { Code::PermissionDenied };
                let found = caller.xds(port, "sidecar", name).await;
                assert_eq!(found, Err(Some(expected)), "{identity:?} on {port:?}: {name}");
            }
            tried += 4;
        }
        for path in MONITORING_PAGES {
            assert_eq!(caller.page(mesh.server.monitoring(), path).await, 401, "{identity:?}: {path}");
            tried += 1;
        }
        // The node of istioctl, which needs no identity on loopback.
        for port in [XdsPort::Plain, XdsPort::Secure] {
            let found = caller.xds(port, "debug", "configz").await;
            assert!(matches!(found, Err(Some(_))), "{identity:?} on {port:?}: {found:?}");
            tried += 1;
        }
    }
    eprintln!("held: {tried} requests for debug pages from {address} were refused");
}

#[tokio::test]
async fn cve_2026_31838_loopback_reads_debug_pages_and_tls_needs_an_identity() {
    let mesh = Mesh::start_open().await;
    let names = page_names(&mesh).await;
    // The same answers show that the refusals of other tests are about the place.
    for address in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 7, 7, 7)] {
        for identity in CALLERS {
            let caller = Caller::new(&mesh, address.into(), identity);
            for port in [mesh.server.http(), mesh.server.monitoring()] {
                for name in &names {
                    let status = caller.page(port, &format!("/debug/{name}")).await;
                    // Pages about a proxy need its name.
                    assert!([200, 400, 404].contains(&status), "{identity:?} on {port}: {name}: {status}");
                }
            }
            assert_eq!(caller.xds(XdsPort::Plain, "sidecar", "configz").await, Ok(1), "{identity:?}");
            let unknown = Err(Some(Code::Unauthenticated));
            let expected = if identity.is_none() { unknown } else { Ok(1) };
            assert_eq!(caller.xds(XdsPort::Secure, "sidecar", "configz").await, expected, "{identity:?}");
            assert_eq!(caller.xds(XdsPort::Secure, "debug", "configz").await, Ok(1), "istioctl, {identity:?}");
        }
    }
}
