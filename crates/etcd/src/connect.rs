//! Connections to members: plain text, or TLS with files that are read for each connection.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use hyper_rustls::ConfigBuilderExt;
use hyper_util::rt::TokioIo;
use net::tls;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::options::EtcdTls;

const CONNECT: Duration = Duration::from_secs(2);
/// Interval and timeout of pings, which detect a member that is gone.
const PING: Duration = Duration::from_secs(2);

/// A TLS handshake that failed. Nothing was sent.
#[derive(Debug, thiserror::Error)]
#[error("could not connect with TLS: {0}")]
pub(crate) struct HandshakeError(String);

/// A channel that connects when it is used, and again after a failure.
pub(crate) fn channel(member: &str, tls: Option<&EtcdTls>) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{member}"))?
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .keep_alive_while_idle(true);
    let Some(tls) = tls.cloned() else { return Ok(endpoint.connect_lazy()) };
    let member: Arc<str> = member.into();
    Ok(endpoint.connect_with_connector_lazy(service_fn(move |_: Uri| open(member.clone(), tls.clone()))))
}

async fn open(member: Arc<str>, tls: EtcdTls) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
    let failed = |reason: String| io::Error::other(HandshakeError(reason));
    let config = config(&tls).map_err(failed)?;
    let host = member.rsplit_once(':').map_or(&*member, |(host, _)| host).trim_matches(['[', ']']);
    let name = ServerName::try_from(host.to_owned()).map_err(|error| failed(error.to_string()))?;
    let stream = TcpStream::connect(&*member).await?;
    stream.set_nodelay(true)?;
    let secured = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    secured.map(TokioIo::new).map_err(|error| failed(error.to_string()))
}

fn config(files: &EtcdTls) -> Result<ClientConfig, String> {
    let read = |path: &Path| fs::read(path).map_err(|error| format!("could not read {}: {error}", path.display()));
    let certificates = |path: &Path| {
        let text = read(path)?;
        tls::certificates(&text).map_err(|error| format!("could not use {}: {error}", path.display()))
    };
    let builder = tls::client().map_err(|error| error.to_string())?;
    let builder = match &files.ca_file {
        Some(path) => {
            let roots = tls::roots(certificates(path)?);
            builder.with_root_certificates(roots.map_err(|e| format!("could not use {}: {e}", path.display()))?)
        }
        None => builder.with_native_roots().map_err(|error| error.to_string())?,
    };
    let mut config = match (&files.cert_file, &files.key_file) {
        (Some(chain), Some(key)) => {
            let private = tls::private_key(&read(key)?).map_err(|e| format!("could not use {}: {e}", key.display()))?;
            let made = builder.with_client_auth_cert(certificates(chain)?, private);
            made.map_err(|error| format!("could not use {} with {}: {error}", chain.display(), key.display()))?
        }
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}
