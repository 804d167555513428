//! Local HTTP requests of the status server: Envoy's admin port, metrics and application probes.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use net::http::{collect, send};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Connects, from the source address if one is given and can be bound.
pub(super) async fn connect(to: SocketAddr, from: Option<IpAddr>) -> Result<TcpStream> {
    let could_not = || format!("could not connect to {to}");
    let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.with_context(could_not)?;
    if let Some(from) = from.filter(|from| from.is_ipv4() == to.is_ipv4())
        && let Err(error) = socket.bind((from, 0).into())
    {
        tracing::debug!(%from, %error, "could not bind the source address; using the default");
    }
    socket.connect(to).await.with_context(could_not)
}

/// Sends a unary gRPC request over HTTP/2 and returns the response message.
pub(super) async fn call(stream: TcpStream, request: Request<Full<Bytes>>) -> Result<Bytes> {
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let response = sender.send_request(request).await?;
    let (head, body) = response.into_parts();
    let body = body.collect().await?;
    driver.abort();
    let trailers = body.trailers().cloned().unwrap_or_default();
    let status = trailers.get("grpc-status").or_else(|| head.headers.get("grpc-status"));
    match status.and_then(|status| status.to_str().ok()) {
        Some("0") => Ok(body.to_bytes()),
        status => bail!("received gRPC status {}", status.unwrap_or("none")),
    }
}

/// Sends a GET request and returns the whole body, with a timeout and a size limit.
pub(super) async fn get(to: SocketAddr, path: &str, time_limit: Duration, limit: usize) -> Result<String> {
    let exchange = async {
        let request = Request::get(path).header("host", to.to_string()).body(Empty::<Bytes>::new())?;
        let response = send(connect(to, None).await?, request).await?;
        if !response.status().is_success() {
            bail!("received {} from {to}{path}", response.status());
        }
        let body = collect(response.into_body(), limit).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    };
    timeout(time_limit, exchange).await.with_context(|| format!("no response from {to} within {time_limit:?}"))?
}

/// TLS without certificate verification, as kubelet does for probes.
pub(super) async fn unverified_tls(
    stream: TcpStream,
    to: IpAddr,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let verifier = Arc::new(AcceptAnyCertificate(net::tls::provider()));
    let config = net::tls::client()?.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(ServerName::IpAddress(to.into()), stream).await.context("TLS handshake failed")
}

/// Accepts every certificate but verifies handshake signatures.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
