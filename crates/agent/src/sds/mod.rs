//! SDS on a Unix socket: Envoy asks for the workload's certificate, its roots and certificates in files, and
//! is notified when they change. `certificates` finds the workload's; `files` looks at files while Envoy wants them.

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

use self::content::resource;
use self::files::{FileContents, SecretReader, follow};
use self::names::SecretSource;
pub use self::names::{ROOT, WORKLOAD};
use crate::certificates::{CertificateStore, CurrentMaterial};
use crate::file_secrets::FileSecretNames;
use crate::file_secrets::access::FileAccess;
use crate::socket::{AllowedPeers, SocketListener};

/// What is served, and to whom.
#[derive(Clone, Debug, Default)]
pub struct SdsOptions {
    pub peers: AllowedPeers,
    /// Files that may be read.
    pub access: FileAccess,
    /// Names of secrets in files that Envoy's configuration holds; no others are served. None where the agent does not
    /// see the configuration.
    pub names: Option<FileSecretNames>,
}

/// The open socket.
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

    /// Where Envoy connects.
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
                    debug!(%error, "connection for secrets ended");
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
        let news = self.store.subscribe();
        let current = news.borrow().clone();
        let (followed, wanted_files) = watch::channel(Vec::new());
        let (sender, contents) = watch::channel(FileContents::new());
        // Ends with the session, which holds the other end.
        tokio::spawn(follow(wanted_files, sender, Arc::clone(&self.reader)));
        let names = self.names.clone();
        Ok(SecretStream {
            news,
            current,
            names,
            wanted: BTreeMap::new(),
            followed,
            contents,
            files: FileContents::new(),
        })
    }
}

/// One stream: what it wants and what that was when last looked at.
struct SecretStream {
    news: watch::Receiver<CurrentMaterial>,
    current: CurrentMaterial,
    names: Option<FileSecretNames>,
    wanted: BTreeMap<Arc<str>, SecretSource>,
    /// Secrets whose files are followed for this stream.
    followed: watch::Sender<Vec<SecretSource>>,
    contents: watch::Receiver<FileContents>,
    files: FileContents,
}

impl SecretStream {
    fn adopt(&mut self, names: &BTreeSet<Arc<str>>) {
        self.wanted = names.iter().filter_map(|name| Some((Arc::clone(name), self.secret(name)?))).collect();
        self.followed.send_replace(self.wanted.values().cloned().collect());
    }

    fn secret(&self, name: &Arc<str>) -> Option<SecretSource> {
        let Some(secret) = SecretSource::parse(name) else {
            warn!(%name, "Envoy asks for a secret that is none of ours");
            return None;
        };
        let is_named = self.names.as_ref().is_none_or(|names| names.contains(name));
        if !secret.files().is_empty() && !is_named {
            warn!(%name, "refused a secret in a file that Envoy's configuration does not name");
            return None;
        }
        Some(secret)
    }
}

impl Client for SecretStream {
    async fn changed(&mut self) {
        tokio::select! {
            news = self.news.changed() => match news {
                Ok(()) => self.current = self.news.borrow_and_update().clone(),
                Err(_) => std::future::pending().await,
            },
            contents = self.contents.changed() => match contents {
                Ok(()) => self.files = self.contents.borrow_and_update().clone(),
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// None while nothing that is wanted is there: Envoy then waits, and is told once it is.
    fn current(&mut self, kind: &TypeUrl) -> Option<Arc<ResourceSet>> {
        if *kind != TypeUrl::SECRET {
            return None;
        }
        let found = self.wanted.iter().filter_map(|(name, secret)| resource(name, secret, &self.current, &self.files));
        let set = ResourceSet::new(TypeUrl::SECRET, found);
        (!set.is_empty()).then(|| Arc::new(set))
    }

    fn observe(&mut self, event: &Event<'_>) {
        match event {
            Event::Subscribed { names, .. } => self.adopt(names),
            Event::Unsubscribed { .. } => self.adopt(&BTreeSet::new()),
            Event::Sent { resources, .. } => {
                info!(names = ?self.wanted.keys().collect::<Vec<_>>(), resources, "secrets sent");
            }
            Event::Nacked { message: reason, .. } => {
                warn!(names = ?self.wanted.keys().collect::<Vec<_>>(), reason, "Envoy refused secrets");
            }
            _ => {}
        }
    }
}
