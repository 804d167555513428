//! The TLS port: certificates from files, replaced while the server runs.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use net::tls;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, ServerName};
use testkit::wait;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::started::{Started, folder};

/// A test CA.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes a new certificate for `istiod.test` and its key; returns the certificate.
    fn issue(&self, folder: &Path) -> CertificateDer<'static> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["istiod.test".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        std::fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
        std::fs::write(folder.join("chain.pem"), certificate.pem()).unwrap();
        certificate.der().clone()
    }

    /// The certificate that a server presents to a client that trusts this CA.
    async fn shown_by(&self, address: SocketAddr) -> Result<CertificateDer<'static>, String> {
        let roots = tls::roots(tls::certificates(self.0.pem().as_bytes()).unwrap()).unwrap();
        let mut config = tls::client().unwrap().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = TcpStream::connect(address).await.map_err(|e| e.to_string())?;
        let name = ServerName::try_from("istiod.test").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|e| e.to_string())?;
        let session = stream.get_ref().1;
        assert_eq!(session.alpn_protocol(), Some(&b"h2"[..]));
        session.peer_certificates().map(|chain| chain[0].clone().into_owned()).ok_or("no certificate".to_owned())
    }
}

fn start(folder: tempfile::TempDir) -> Started {
    let flag = |name: &str, file: &str| format!("--{name}={}", folder.path().join(file).display());
    let (chain, key) = (flag("tlsCertFile", "chain.pem"), flag("tlsKeyFile", "key.pem"));
    Started::on(folder, &["--registries=", "--secureGRPCAddr=127.0.0.1:0", &chain, &key])
}

#[tokio::test]
async fn replaced_certificates_are_presented_to_new_connections() {
    let (folder, authority) = (folder(), Authority::new());
    let first = authority.issue(folder.path());
    let mut server = start(folder);
    let address = server.port("secureGRPC").await;
    assert_eq!(authority.shown_by(address).await, Ok(first));

    let second = authority.issue(server.folder.path());
    wait::until("the new certificate", async || {
        let shown = authority.shown_by(address).await?;
        if shown == second { Ok(()) } else { Err("the old one".to_owned()) }
    })
    .await;
}

#[tokio::test]
async fn bad_file_keeps_the_last_good_certificate() {
    let (folder, authority) = (folder(), Authority::new());
    let good = authority.issue(folder.path());
    let mut server = start(folder);
    let address = server.port("secureGRPC").await;
    std::fs::write(server.path("chain.pem"), "not a certificate").unwrap();
    server.says("keeping the last good ones").await;
    assert_eq!(authority.shown_by(address).await, Ok(good));
}

#[tokio::test]
async fn without_certificates_the_port_is_off_and_a_log_line_says_so() {
    let mut server = Started::on(folder(), &["--registries=", "--secureGRPCAddr=127.0.0.1:0"]);
    server.ready().await;
    server.says("secure gRPC port is off").await;
    assert!(!server.process.output().contains("port=\"secureGRPC\""));
}
