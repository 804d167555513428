//! TLS to the control plane: server verification, client certificate, and reload of changed files.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent::metrics::Metrics;
use agent::relay::{Relay, RelayOptions, Upstream, UpstreamTls};
use net::tls;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use testkit::wait;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, UnixStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Writes a certificate for a name, and its key, as NAME.pem and NAME-key.pem.
fn issue(authority: &Authority, folder: &Path, name: &str) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, authority).unwrap();
    std::fs::write(folder.join(format!("{name}.pem")), certificate.pem()).unwrap();
    std::fs::write(folder.join(format!("{name}-key.pem")), key.serialize_pem()).unwrap();
}

/// A server that records for each handshake whether a client certificate was presented, or the error.
async fn server(authority: &Authority, folder: &Path) -> (u16, Arc<Mutex<Vec<String>>>) {
    let roots = tls::roots(tls::certificates(authority.pem().as_bytes()).unwrap()).unwrap();
    let verifier = tls::optional_client_verifier(roots, []).unwrap();
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let chain = tls::certificates(&read("istiod.test.pem")).unwrap();
    let key = tls::private_key(&read("istiod.test-key.pem")).unwrap();
    let builder = tls::server().unwrap().with_client_cert_verifier(verifier);
    let mut config = builder.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let noted = Arc::<Mutex<Vec<String>>>::default();
    tokio::spawn({
        let noted = Arc::clone(&noted);
        async move {
            while let Ok((stream, _)) = listener.accept().await {
                let accepted = acceptor.accept(stream).await;
                let note = match &accepted {
                    Ok(stream) => format!("client certificate: {}", stream.get_ref().1.peer_certificates().is_some()),
                    Err(error) => format!("failed: {error}"),
                };
                noted.lock().unwrap().push(note);
                if let Ok(mut stream) = accepted {
                    tokio::spawn(async move { while let Ok(1..) = stream.read(&mut [0; 1024]).await {} });
                }
            }
        }
    });
    (port, noted)
}

#[tokio::test]
async fn server_is_verified_and_client_certificate_presented() {
    let (authority, folder) = (authority(), tempfile::tempdir().unwrap());
    issue(&authority, folder.path(), "istiod.test");
    let (port, noted) = server(&authority, folder.path()).await;
    let roots = folder.path().join("root.pem");
    // Another CA at first: the server must be rejected.
    std::fs::write(&roots, self::authority().pem()).unwrap();
    let client = (folder.path().join("agent.pem"), folder.path().join("agent-key.pem"));
    let tls = UpstreamTls { roots: roots.clone(), names: vec!["istiod.test".into()], client: Some(client) };
    let upstream = Upstream { tls: Some(tls), ..Upstream::plain(&format!("127.0.0.1:{port}")) };
    let socket = folder.path().join("XDS");
    let options =
        RelayOptions { max_connect_wait: Duration::from_secs(60), ..RelayOptions::new(socket.clone(), upstream) };
    let metrics = Arc::new(Metrics::default());
    let (relay, stop) = (Relay::bind(options, None, Arc::clone(&metrics)).unwrap(), CancellationToken::new());
    tokio::spawn(relay.serve(stop.clone()));
    let _stream = tokio::spawn(open(socket));
    let seen = async |what: &str| {
        wait::until(what, async || {
            let noted = noted.lock().unwrap().clone();
            if noted.iter().any(|note| note.starts_with(what)) { Ok(()) } else { Err(format!("{noted:?}")) }
        })
        .await;
    };
    seen("failed").await;
    assert!(metrics.pilot_connection_failures.get() > 0);
    issue(&authority, folder.path(), "agent");
    std::fs::write(&roots, authority.pem()).unwrap();
    seen("client certificate: true").await;
    stop.cancel();
}

/// Opens a stream like Envoy and leaves it open.
async fn open(socket: std::path::PathBuf) {
    let stream = UnixStream::connect(socket).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake::<_, _, http_body_util::Empty<bytes::Bytes>>(executor, io).await.unwrap();
    tokio::spawn(connection);
    let path = "http://relay/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
    let request = http::Request::post(path).body(http_body_util::Empty::new()).unwrap();
    let _ = sender.send_request(request).await;
}
