//! One call to the certificate authority, with its own connection: token, roots and client certificate are read each time.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, TE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Request};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use trust::wire::{CREATE_CERTIFICATE, IstioCertificateRequest, IstioCertificateResponse};

use super::TlsMaterial;
use crate::relay::Upstream;

/// Time for one call, after the connection is made.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response: a chain and some roots.
const MAX_RESPONSE: usize = 1 << 20;

/// Requests a certificate from the first address that issues one. Without a token, the current certificate authenticates
/// this workload.
pub(super) async fn create_certificate(
    upstream: &Upstream,
    message: &IstioCertificateRequest,
    current: Option<&TlsMaterial>,
) -> Result<Vec<String>> {
    let mut failures = Vec::new();
    for (index, candidate) in upstream.candidates() {
        match create_certificate_at(&candidate, message, current).await {
            Ok(chain) => {
                upstream.prefer(index);
                return Ok(chain);
            }
            Err(error) if upstream.others.is_empty() => return Err(error),
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    bail!("{}", failures.join("; "))
}

async fn create_certificate_at(
    upstream: &Upstream,
    message: &IstioCertificateRequest,
    current: Option<&TlsMaterial>,
) -> Result<Vec<String>> {
    let address = &upstream.address;
    let connected = timeout(upstream.connect_timeout, TcpStream::connect(address)).await;
    let stream = connected.context("no connection in time").and_then(|connected| Ok(connected?));
    let stream = stream.with_context(|| format!("could not connect to the CA {address}"))?;
    let authorization = upstream.authorization();
    let tls = upstream.tls.as_ref().context("could not call the CA: it needs TLS")?;
    let own = current.filter(|_| authorization.is_none()).map(|material| (&*material.chain, &*material.key));
    let config = tls.config_with(current.map_or(&[], |material| &*material.root), own)?;
    let secured =
        timeout(upstream.connect_timeout, TlsConnector::from(config).connect(tls.name(address)?, stream)).await;
    let secured = secured.context("no TLS handshake in time").and_then(|secured| Ok(secured?));
    let stream = secured.with_context(|| format!("TLS handshake with the CA {address} failed"))?;
    let called = timeout(CALL_TIMEOUT, call(stream, upstream, authorization, message)).await;
    called.with_context(|| format!("no response of the CA {address} within {CALL_TIMEOUT:?}"))?
}

async fn call<S>(
    stream: S,
    upstream: &Upstream,
    authorization: Option<HeaderValue>,
    message: &IstioCertificateRequest,
) -> Result<Vec<String>>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) =
        http2::Builder::new(TokioExecutor::new()).timer(TokioTimer::new()).handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let response = sender.send_request(request(upstream, authorization, message)?).await;
    let (head, body) = response.context("could not send the request to the CA")?.into_parts();
    let body = Limited::new(body, MAX_RESPONSE).collect().await;
    connection.abort();
    let body = body.map_err(|error| anyhow::anyhow!("could not read the CA's response: {error}"))?;
    let trailers = body.trailers().filter(|all| all.contains_key("grpc-status")).unwrap_or(&head.headers);
    check_status(trailers)?;
    let bytes = body.to_bytes();
    let reply = IstioCertificateResponse::decode(bytes.get(5..).unwrap_or_default());
    Ok(reply.context("could not decode the CA's response")?.cert_chain)
}

fn request(
    upstream: &Upstream,
    authorization: Option<HeaderValue>,
    message: &IstioCertificateRequest,
) -> Result<Request<Full<Bytes>>> {
    let content = message.encode_to_vec();
    let length = u32::try_from(content.len())?.to_be_bytes();
    let frame = [&[0], &length[..], &content].concat();
    let mut request = Request::post(format!("https://{}{CREATE_CERTIFICATE}", upstream.address))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(USER_AGENT, "pilot-agent")
        .header("grpc-timeout", format!("{}S", CALL_TIMEOUT.as_secs()))
        .body(Full::from(frame))?;
    request.headers_mut().extend(upstream.headers.iter().cloned());
    if let Some(value) = authorization {
        request.headers_mut().insert(AUTHORIZATION, value);
    }
    Ok(request)
}

fn check_status(headers: &HeaderMap) -> Result<()> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match text("grpc-status") {
        Some("0") => Ok(()),
        Some(code) => {
            let message: String = text("grpc-message").unwrap_or_default().chars().take(300).collect();
            bail!("the CA refused the request: {} (gRPC status {code})", message.replace("%20", " "))
        }
        None => bail!("the CA sent no gRPC status"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use net::tls;
    use testkit::certificates::Authority;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;
    use trust::wire::IstioCertificateRequest;

    use super::{CALL_TIMEOUT, create_certificate};
    use crate::relay::{Upstream, UpstreamTls};

    const HANDSHAKE: Duration = Duration::from_millis(500);

    /// Asks a CA at this address, with its root in a folder.
    async fn failure(listener: TcpListener, authority: &Authority, connect_timeout: Duration) -> (String, Duration) {
        let folder = tempfile::tempdir().unwrap();
        let roots = folder.path().join("root-cert.pem");
        std::fs::write(&roots, authority.root()).unwrap();
        let tls = UpstreamTls { roots, names: vec!["127.0.0.1".to_owned()], client: None };
        let address = listener.local_addr().unwrap().to_string();
        let upstream = Upstream { tls: Some(tls), connect_timeout, ..Upstream::plain(&address) };
        let begun = Instant::now();
        let asked = create_certificate(&upstream, &IstioCertificateRequest::default(), None).await;
        drop(listener);
        (format!("{:#}", asked.unwrap_err()), begun.elapsed())
    }

    #[tokio::test]
    async fn a_ca_that_never_answers_the_handshake_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        // The kernel accepts the connection; nothing reads from it.
        let (error, took) = failure(listener, &Authority::new(), HANDSHAKE).await;
        assert!(error.contains("no TLS handshake in time"), "{error}");
        assert!(took >= HANDSHAKE, "{took:?}");
    }

    #[tokio::test]
    async fn a_ca_that_accepts_a_request_and_never_answers_is_given_up() {
        let authority = Authority::new();
        let own = authority.workload("spiffe://cluster.local/ns/istio-system/sa/istiod");
        let chain = tls::certificates(own.chain.as_bytes()).unwrap();
        let key = tls::private_key(own.key.as_bytes()).unwrap();
        let mut config = tls::server().unwrap().with_no_client_auth().with_single_cert(chain, key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let own = TcpListener::from_std(socket.try_clone().unwrap()).unwrap();
        let silent = tokio::spawn(async move {
            let (stream, _) = own.accept().await.unwrap();
            let mut stream = acceptor.accept(stream).await.unwrap();
            // Everything is read, nothing is written.
            tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
        });
        let listener = TcpListener::from_std(socket).unwrap();
        let (error, took) = failure(listener, &authority, Duration::from_secs(30)).await;
        assert!(error.contains("no response of the CA"), "{error}");
        assert!(took >= CALL_TIMEOUT, "{took:?}");
        silent.await.unwrap().ok();
    }
}
