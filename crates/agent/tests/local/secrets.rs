//! SDS with a real Envoy: it presents the workload's certificate, verifies clients, uses certificates in files, and
//! switches to new ones without a restart.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use agent::certificates::{CertificateStore, TlsMaterial};
use agent::file_secrets::access::FileAccess;
use agent::sds::{SdsOptions, SdsServer};
use net::tls;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use testkit::envoy::Envoy;
use testkit::{ports, servers, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

/// A test CA.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
struct Issued {
    chain: String,
    key: String,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Different from the names of its certificates, which would otherwise look self-signed.
        params.distinguished_name.push(DnType::CommonName, "test CA");
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(&self) -> Issued {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["workload.test".to_owned()]).unwrap();
        Issued { chain: params.signed_by(&key, &self.0).unwrap().pem(), key: key.serialize_pem() }
    }

    fn material(&self, issued: &Issued) -> TlsMaterial {
        TlsMaterial {
            chain: issued.chain.clone().into(),
            key: issued.key.clone().into(),
            root: self.0.pem().into(),
            ..TlsMaterial::default()
        }
    }
}

impl Issued {
    fn write(&self, folder: &Path) {
        std::fs::write(folder.join("cert.pem"), &self.chain).unwrap();
        std::fs::write(folder.join("key.pem"), &self.key).unwrap();
    }

    fn der(&self) -> CertificateDer<'static> {
        tls::certificates(self.chain.as_bytes()).unwrap().remove(0)
    }
}

/// The server certificate of a port. With `client`, that client certificate is presented and must be accepted.
async fn served_certificate(
    address: SocketAddr,
    trusted: &str,
    client: Option<&Issued>,
) -> Result<CertificateDer<'static>, String> {
    let roots = tls::roots(tls::certificates(trusted.as_bytes()).unwrap()).unwrap();
    let builder = tls::client().unwrap().with_root_certificates(roots);
    let config = match client {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let key = tls::private_key(own.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(vec![own.der()], key).unwrap()
        }
    };
    let stream = TcpStream::connect(address).await.map_err(|e| e.to_string())?;
    let name = ServerName::try_from("workload.test").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let mut stream = stream.map_err(|e| e.to_string())?;
    let shown = stream.get_ref().1.peer_certificates().map(|chain| chain[0].clone().into_owned());
    // With TLS 1.3 a rejected client certificate shows after the handshake.
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.map_err(|e| e.to_string())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.map_err(|e| e.to_string())?;
    if answer.contains("200 OK") { shown.ok_or("no certificate".to_owned()) } else { Err(format!("{answer:?}")) }
}

fn sds(name: &str, api_type: &str) -> Value {
    let service = json!({"envoy_grpc": {"cluster_name": "sds-grpc"}});
    let source = json!({"api_type": api_type, "transport_api_version": "V3", "grpc_services": [service]});
    json!({"name": name, "sds_config": {
        "api_config_source": source, "initial_fetch_timeout": "0s", "resource_api_version": "V3",
    }})
}

fn listener(port: u16, certificate: Value, roots: Option<Value>) -> Value {
    let mut tls = json!({
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": {"tls_certificate_sds_secret_configs": [certificate]},
    });
    if let Some(roots) = roots {
        tls["require_client_certificate"] = true.into();
        tls["common_tls_context"]["validation_context_sds_secret_config"] = roots;
    }
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
            {"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": "here"}}},
        ]}]},
        "http_filters": [{"name": "router", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
        }}],
    });
    json!({
        "name": format!("port-{port}"),
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [{
            "transport_socket": {"name": "tls", "typed_config": tls},
            "filters": [{"name": "http", "typed_config": manager}],
        }],
    })
}

fn bootstrap(socket: &Path, listeners: &[Value]) -> Value {
    json!({
        "node": {"id": "sidecar~127.0.0.1~a.shop~shop.svc.cluster.local", "cluster": "a"},
        "static_resources": {
            "listeners": listeners,
            "clusters": [{
                "name": "sds-grpc",
                "connect_timeout": "1s",
                "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                    "explicit_http_config": {"http2_protocol_options": {}},
                }},
                "load_assignment": {"cluster_name": "sds-grpc", "endpoints": [{"lb_endpoints": [
                    {"endpoint": {"address": {"pipe": {"path": socket}}}},
                ]}]},
            }],
        },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_receives_secrets_and_their_updates() {
    if servers::without("envoy") {
        return;
    }
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let (store, socket, stop) = (CertificateStore::new(), folder.path().join("sds/socket"), CancellationToken::new());
    let options = SdsOptions { access: FileAccess::new([], [folder.path().to_owned()]), ..SdsOptions::default() };
    let server = SdsServer::bind(&socket, store.clone(), options).unwrap();
    tokio::spawn(server.serve(stop.clone()));
    let file = |name: &str| folder.path().join(name).display().to_string();
    let pair = format!("file-cert:{}~{}", file("cert.pem"), file("key.pem"));
    let roots = format!("file-root:{}", file("root.pem"));
    let [workload_port, file_port] = [ports::free(), ports::free()];
    let listeners = [
        listener(workload_port, sds("default", "GRPC"), Some(sds("ROOTCA", "DELTA_GRPC"))),
        listener(file_port, sds(&pair, "DELTA_GRPC"), Some(sds(&roots, "GRPC"))),
    ];
    let envoy = Envoy::start_with(bootstrap(&socket, &listeners)).await;
    // Envoy subscribed before there was a secret; it is pushed once there is one.
    let first = authority.issue();
    store.publish(authority.material(&first));
    let own = authority.issue();
    own.write(folder.path());
    std::fs::write(folder.path().join("root.pem"), authority.0.pem()).unwrap();
    let client = authority.issue();
    let shows = async |port: u16, wanted: &Issued| {
        wait::until(&format!("the right certificate on {port}"), async || {
            let got = served_certificate(([127, 0, 0, 1], port).into(), &authority.0.pem(), Some(&client)).await?;
            if got == wanted.der() { Ok(()) } else { Err("another certificate".to_owned()) }
        })
        .await;
    };
    shows(workload_port, &first).await;
    shows(file_port, &own).await;
    // A client of another CA, or without a certificate, is rejected.
    let stranger = Authority::new().issue();
    for refused in [Some(&stranger), None] {
        let got = served_certificate(([127, 0, 0, 1], workload_port).into(), &authority.0.pem(), refused).await;
        assert!(got.is_err(), "{got:?}");
    }
    let second = authority.issue();
    store.publish(authority.material(&second));
    shows(workload_port, &second).await;
    // Files change one by one, with garbage in between: the old pair is served until the new one is complete.
    let next = authority.issue();
    std::fs::write(folder.path().join("key.pem"), "half writ").unwrap();
    std::fs::write(folder.path().join("cert.pem"), &next.chain).unwrap();
    shows(file_port, &own).await;
    next.write(folder.path());
    shows(file_port, &next).await;
    assert_eq!(envoy.admin().rejected().await, Ok(0), "secrets that Envoy rejected");
    stop.cancel();
}
