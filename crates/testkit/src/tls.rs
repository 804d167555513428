//! A TLS client with optional client certificate, and HTTP over it.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use http::Request;
use net::tls;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::certificates::{Authority, Certificate};
use crate::client::{self, Reply};
use crate::error::ReplyError;

/// ALPN protocols of sidecars, by which servers recognize them.
pub const MESH_HTTP: &[&str] = &["istio-http/1.1", "http/1.1"];
pub const MESH_BYTES: &[&str] = &["istio"];

/// A client with or without a certificate.
#[derive(Clone)]
pub struct TlsClient(TlsConnector);

impl TlsClient {
    /// Trusts the authority; `protocols` are offered by ALPN.
    pub fn new(trusted: &Authority, own: Option<&Certificate>, protocols: &[&str]) -> TlsClient {
        TlsClient::trusting(&trusted.root(), own, protocols)
    }

    /// Trusts the root certificates of a PEM text.
    pub fn trusting(trusted: &str, own: Option<&Certificate>, protocols: &[&str]) -> TlsClient {
        let roots = tls::certificates(trusted.as_bytes()).unwrap_or_else(|e| panic!("no root: {e}"));
        let roots = tls::roots(roots).unwrap_or_else(|e| panic!("no root: {e}"));
        let builder = tls::client().unwrap_or_else(|e| panic!("no TLS: {e}")).with_root_certificates(roots);
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let chain = tls::certificates(own.chain.as_bytes()).unwrap_or_else(|e| panic!("no chain: {e}"));
                let key = tls::private_key(own.key.as_bytes()).unwrap_or_else(|e| panic!("no key: {e}"));
                builder.with_client_auth_cert(chain, key).unwrap_or_else(|e| panic!("no certificate: {e}"))
            }
        };
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsClient(TlsConnector::from(Arc::new(config)))
    }

    /// Connects and verifies the host name; an empty name means the IP address, without SNI.
    pub async fn connect(&self, address: SocketAddr, name: &str) -> Result<TlsStream<TcpStream>, ReplyError> {
        let connect = async || -> Result<_, Box<dyn Error + Send + Sync>> {
            let name = match name {
                "" => ServerName::from(IpAddr::V4(Ipv4Addr::LOCALHOST)),
                name => ServerName::try_from(name.to_owned())?,
            };
            Ok(self.0.connect(name, TcpStream::connect(address).await?).await?)
        };
        connect().await.map_err(ReplyError::no_response(address))
    }

    /// GET over a new connection to a verified host.
    pub async fn get(&self, address: SocketAddr, name: &str, host: &str, path: &str) -> Result<Reply, ReplyError> {
        let stream = self.connect(address, name).await?;
        let request = Request::get(path).header("host", host).body(String::new())?;
        client::send_over(stream, request).await.map_err(ReplyError::no_response(address))
    }

    /// POST of JSON over a new connection to a verified host.
    pub async fn post(&self, address: SocketAddr, name: &str, path: &str, body: String) -> Result<Reply, ReplyError> {
        let stream = self.connect(address, name).await?;
        let request = Request::post(path).header("host", name).header("content-type", "application/json").body(body)?;
        client::send_over(stream, request).await.map_err(ReplyError::no_response(address))
    }
}
