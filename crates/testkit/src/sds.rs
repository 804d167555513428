//! An SDS server that serves keys and certificates by name, like the agent of a sidecar.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use api::envoy::config::core::v3::{DataSource, Node, data_source};
use api::envoy::extensions::transport_sockets::tls::v3::secret::Type;
use api::envoy::extensions::transport_sockets::tls::v3::{CertificateValidationContext, Secret, TlsCertificate};
use api::{Resource, TypeUrl};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use xds::{Client, Control, Event, Options, Peer, ResourceSet};

use crate::certificates::{Authority, Certificate};

/// A running SDS server; stopped on drop.
pub struct SdsServer {
    address: SocketAddr,
    task: JoinHandle<()>,
}

/// Secrets by name.
#[derive(Clone, Debug, Default)]
pub struct SdsSecrets(BTreeMap<String, Type>);

impl SdsSecrets {
    /// A workload certificate and its trusted roots, under the names that sidecars use.
    pub fn of_workload(own: &Certificate, trusted: &Authority) -> SdsSecrets {
        SdsSecrets::default().with_certificate("default", own).with_roots("ROOTCA", trusted)
    }

    #[must_use]
    pub fn with_certificate(mut self, name: &str, certificate: &Certificate) -> SdsSecrets {
        let pair = TlsCertificate {
            certificate_chain: inline(&certificate.chain),
            private_key: inline(&certificate.key),
            ..TlsCertificate::default()
        };
        self.0.insert(name.to_owned(), Type::TlsCertificate(pair));
        self
    }

    #[must_use]
    pub fn with_roots(mut self, name: &str, trusted: &Authority) -> SdsSecrets {
        let context = CertificateValidationContext {
            trusted_ca: inline(&trusted.root()),
            ..CertificateValidationContext::default()
        };
        self.0.insert(name.to_owned(), Type::ValidationContext(context));
        self
    }
}

fn inline(text: &str) -> Option<DataSource> {
    let specifier = Some(data_source::Specifier::InlineString(text.to_owned()));
    Some(DataSource { specifier, ..DataSource::default() })
}

impl SdsServer {
    pub async fn start(secrets: SdsSecrets) -> SdsServer {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.unwrap_or_else(|e| panic!("could not listen: {e}"));
        let address = listener.local_addr().unwrap_or_else(|e| panic!("a bound socket has an address: {e}"));
        let server = tonic::transport::Server::builder().add_routes(routes(secrets));
        let task = tokio::spawn(async move {
            let _ = server.serve_with_incoming(TcpListenerStream::new(listener)).await;
        });
        SdsServer { address, task }
    }

    /// Serves on a Unix socket, like the agent of SPIRE. Such a server has no port.
    pub fn start_on(socket: &Path, secrets: SdsSecrets) -> SdsServer {
        let listener = UnixListener::bind(socket).unwrap_or_else(|e| panic!("could not listen: {e}"));
        let server = tonic::transport::Server::builder().add_routes(routes(secrets));
        let task = tokio::spawn(async move {
            let _ = server.serve_with_incoming(UnixListenerStream::new(listener)).await;
        });
        SdsServer { address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), task }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

fn routes(secrets: SdsSecrets) -> tonic::service::Routes {
    let resources = secrets
        .0
        .into_iter()
        .map(|(name, content)| Resource::new(name.as_str(), &Secret { name: name.clone(), r#type: Some(content) }));
    let control = Arc::new(FixedSecrets(Arc::new(ResourceSet::new(TypeUrl::SECRET, resources))));
    let stop = CancellationToken::new();
    xds::routes(control, Options { identifier: "agent".to_owned(), stop, ..Options::default() })
}

impl Drop for SdsServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A fixed set of secrets.
#[derive(Clone)]
struct FixedSecrets(Arc<ResourceSet>);

impl Control for FixedSecrets {
    type Client = FixedSecrets;

    async fn connect(&self, _: Node, _: Peer) -> Result<FixedSecrets, Status> {
        Ok(self.clone())
    }
}

impl Client for FixedSecrets {
    async fn changed(&mut self) {
        std::future::pending().await
    }

    fn current(&mut self, kind: &TypeUrl) -> Option<Arc<ResourceSet>> {
        (*kind == TypeUrl::SECRET).then(|| self.0.clone())
    }

    fn observe(&mut self, _: &Event<'_>) {}
}
