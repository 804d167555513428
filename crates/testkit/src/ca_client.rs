//! A client of `IstioCertificateService`, with any credentials and any request.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use trust::csr;
use trust::issue::SubjectName;
use trust::key::{KeyFormat, KeyKind, PrivateKey};
use trust::wire::{CREATE_CERTIFICATE, IstioCertificateRequest, IstioCertificateResponse};

use crate::certificates::Certificate;
use crate::tls::TlsClient;

/// gRPC status code and message of a refusal; code -1 if there was no response.
pub type Refusal = (i32, String);

/// Calls the certificate service of one server.
#[derive(Clone)]
pub struct CaClient {
    pub address: SocketAddr,
    /// Name that the server's certificate must have.
    pub name: String,
    pub tls: TlsClient,
    /// Sent with each request.
    pub headers: Vec<(String, String)>,
}

impl CaClient {
    /// A client that trusts these roots, with an optional token.
    pub fn new(address: SocketAddr, roots: &str, own: Option<&Certificate>, token: Option<&str>) -> CaClient {
        let headers = token.map(|token| ("authorization".to_owned(), format!("Bearer {token}")));
        CaClient {
            address,
            name: "istiod.istio-system.svc".to_owned(),
            tls: TlsClient::trusting(roots, own, &["h2"]),
            headers: headers.into_iter().collect(),
        }
    }

    /// Requests a certificate for a new key.
    pub async fn certificate(&self, identity: &str, seconds: i64) -> Result<(Certificate, Vec<String>), Refusal> {
        let key = PrivateKey::generate(KeyKind::P256).unwrap_or_else(|e| panic!("no key: {e}"));
        let request = csr::request(&key, &[SubjectName::of_text(identity)]).unwrap_or_else(|e| panic!("no CSR: {e}"));
        let reply = self.sign(&request, seconds).await?;
        let key = key.to_pem(KeyFormat::Pkcs8).unwrap_or_else(|e| panic!("no key: {e}")).to_string();
        let intermediates = reply.len().saturating_sub(1);
        Ok((Certificate { chain: reply[..intermediates].concat(), key }, reply))
    }

    /// Sends a CSR and returns the chain of the response.
    pub async fn sign(&self, request: &str, seconds: i64) -> Result<Vec<String>, Refusal> {
        let message = IstioCertificateRequest { csr: request.to_owned(), validity_duration: seconds, metadata: None };
        self.call(&message.encode_to_vec()).await
    }

    /// Sends an encoded message.
    pub async fn call(&self, message: &[u8]) -> Result<Vec<String>, Refusal> {
        let stream = self.tls.connect(self.address, &self.name).await.map_err(|error| (-1, error.to_string()))?;
        call_over(stream, &self.headers, message).await
    }
}

/// Sends an encoded message over a connection, which may be in plain text.
pub async fn call_over<S>(stream: S, headers: &[(String, String)], message: &[u8]) -> Result<Vec<String>, Refusal>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let failed = |error: hyper::Error| (-1, error.to_string());
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(failed)?;
    let connection = tokio::spawn(connection);
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    let frame = [&[0], &length[..], message].concat();
    let mut request = Request::post(format!("http://ca{CREATE_CERTIFICATE}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request.body(Full::<Bytes>::from(frame)).map_err(|error| (-1, error.to_string()))?;
    let response = sender.send_request(request).await.map_err(failed)?;
    let (head, body) = response.into_parts();
    let body = body.collect().await.map_err(failed)?;
    connection.abort();
    let headers = body.trailers().filter(|all| all.contains_key("grpc-status")).unwrap_or(&head.headers);
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    match text("grpc-status").parse() {
        Ok(0) => {
            let bytes = body.to_bytes();
            let reply = IstioCertificateResponse::decode(bytes.get(5..).unwrap_or_default());
            Ok(reply.map_err(|error| (-1, error.to_string()))?.cert_chain)
        }
        Ok(code) => Err((code, text("grpc-message"))),
        Err(_) => Err((-1, format!("no gRPC status, HTTP status {}", head.status))),
    }
}
