//! SDS on a Unix socket: serves the workload's certificate, its roots and certificates in files, and pushes changes.
//! `certificates` provides the workload's; `files` polls files while Envoy subscribes to them.

mod content;
mod files;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tracing::{debug, info, warn};
use xds::{Client, Control, Event, Peer, ResourceSet};

use self::content::{FileContents, resource};
use self::files::{SecretReader, poll_files};
use self::names::SecretSource;
pub use self::names::{ROOT, WORKLOAD};
use crate::certificates::{CertificateStore, CurrentMaterial};
use crate::file_secrets::FileSecretNames;
use crate::file_secrets::access::FileAccess;
use crate::socket::{AllowedPeers, SocketListener};

/// Options of the SDS server.
#[derive(Clone, Debug, Default)]
pub struct SdsOptions {
    pub peers: AllowedPeers,
    /// Files that may be read.
    pub access: FileAccess,
    /// File secret names in Envoy's configuration; no others are served. `None` if the agent does not see the
    /// configuration, then all names are served.
    pub names: Option<FileSecretNames>,
}

/// The listening SDS server.
pub struct SdsServer {
    listener: SocketListener,
    secrets: SecretService,
}

impl SdsServer {
    pub fn bind(path: &Path, store: CertificateStore, options: SdsOptions) -> Result<SdsServer> {
        let listener = SocketListener::bind(path, options.peers)?;
        info!(socket = %path.display(), "serving secrets");
        let reader = Arc::new(SecretReader::new(options.access));
        Ok(SdsServer { listener, secrets: SecretService { store, reader, names: options.names } })
    }

    /// Path of the socket.
    pub fn socket(&self) -> &Path {
        self.listener.path()
    }

    /// Serves until cancelled.
    pub async fn serve(mut self, stop: CancellationToken) {
        let options =
            xds::Options { identifier: "pilot-agent".to_owned(), stop: stop.clone(), ..xds::Options::default() };
        let routes = xds::routes(Arc::new(self.secrets), options);
        let mut connections = JoinSet::new();
        while let Some(stream) = stop.run_until_cancelled(self.listener.accept()).await {
            while connections.try_join_next().is_some() {}
            let service = TowerToHyperService::new(routes.clone());
            connections.spawn(async move {
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
                if let Err(error) = server {
                    debug!(%error, "SDS connection ended");
                }
            });
        }
    }
}

struct SecretService {
    store: CertificateStore,
    reader: Arc<SecretReader>,
    names: Option<FileSecretNames>,
}

impl Control for SecretService {
    type Client = SecretStream;

    async fn connect(&self, _: Node, _: Peer) -> Result<SecretStream, Status> {
        let certificates = self.store.subscribe();
        let current = certificates.borrow().clone();
        let (polled, polled_secrets) = watch::channel(Vec::new());
        let (sender, contents) = watch::channel(FileContents::new());
        // Ends when the stream drops its sender.
        tokio::spawn(poll_files(polled_secrets, sender, Arc::clone(&self.reader)));
        let names = self.names.clone();
        Ok(SecretStream {
            certificates,
            current,
            names,
            subscribed: BTreeMap::new(),
            polled,
            contents,
            files: FileContents::new(),
        })
    }
}

/// One SDS stream: its subscribed secrets and their last known content.
struct SecretStream {
    certificates: watch::Receiver<CurrentMaterial>,
    current: CurrentMaterial,
    names: Option<FileSecretNames>,
    subscribed: BTreeMap<Arc<str>, SecretSource>,
    /// Secrets whose files are polled for this stream.
    polled: watch::Sender<Vec<SecretSource>>,
    contents: watch::Receiver<FileContents>,
    files: FileContents,
}

impl SecretStream {
    fn subscribe(&mut self, names: &BTreeSet<Arc<str>>) {
        self.subscribed = names.iter().filter_map(|name| Some((Arc::clone(name), self.secret(name)?))).collect();
        self.polled.send_replace(self.subscribed.values().cloned().collect());
    }

    fn secret(&self, name: &Arc<str>) -> Option<SecretSource> {
        let Some(secret) = SecretSource::parse(name) else {
            warn!(%name, "ignoring a request for an unknown secret name");
            return None;
        };
        let is_named = self.names.as_ref().is_none_or(|names| names.contains(name));
        if !secret.files().is_empty() && !is_named {
            warn!(%name, "refused a file secret that Envoy's configuration does not name");
            return None;
        }
        Some(secret)
    }
}

impl Client for SecretStream {
    async fn changed(&mut self) {
        tokio::select! {
            certificates = self.certificates.changed() => match certificates {
                Ok(()) => self.current = self.certificates.borrow_and_update().clone(),
                Err(_) => std::future::pending().await,
            },
            contents = self.contents.changed() => match contents {
                Ok(()) => self.files = self.contents.borrow_and_update().clone(),
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// `None` while no subscribed secret is available: Envoy waits until it is pushed.
    fn current(&mut self, kind: &TypeUrl) -> Option<Arc<ResourceSet>> {
        if *kind != TypeUrl::SECRET {
            return None;
        }
        let found =
            self.subscribed.iter().filter_map(|(name, secret)| resource(name, secret, &self.current, &self.files));
        let set = ResourceSet::new(TypeUrl::SECRET, found);
        (!set.is_empty()).then(|| Arc::new(set))
    }

    fn observe(&mut self, event: &Event<'_>) {
        match event {
            Event::Subscribed { names, .. } => self.subscribe(names),
            Event::Unsubscribed { .. } => self.subscribe(&BTreeSet::new()),
            Event::Sent { resources, .. } => {
                info!(names = ?self.subscribed.keys().collect::<Vec<_>>(), resources, "sent secrets to Envoy");
            }
            Event::Nacked { message: reason, .. } => {
                warn!(names = ?self.subscribed.keys().collect::<Vec<_>>(), reason, "Envoy rejected secrets");
            }
            _ => {}
        }
    }
}
