//! SDS on a Unix socket: Envoy asks for the workload's certificate, its roots and certificates in files, and
//! is told when they change. `certificates` finds the workload's; files are looked at while Envoy wants them.

mod content;
mod names;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tracing::{debug, info, warn};
use xds::{Client, Control, Event, Peer, ResourceSet};

use self::content::{Files, resource};
use self::names::Secret;
pub use self::names::{ROOT, WORKLOAD};
use crate::certificates::{Current, Store};
use crate::socket;

/// How often files are looked at. Certificates are replaced long before the old ones end.
const LOOK: Duration = Duration::from_millis(500);

/// The open socket.
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    store: Store,
}

impl Server {
    pub fn bind(path: &Path, store: Store) -> Result<Server> {
        let listener = socket::listen(path)?;
        info!(socket = %path.display(), "serving secrets");
        Ok(Server { listener, path: path.to_owned(), store })
    }

    /// Where Envoy connects.
    pub fn socket(&self) -> &Path {
        &self.path
    }

    /// Serves until cancelled.
    pub async fn serve(self, stop: CancellationToken) {
        let options =
            xds::Options { identifier: "pilot-agent".to_owned(), stop: stop.clone(), ..xds::Options::default() };
        let routes = xds::routes(Arc::new(Secrets { store: self.store }), options);
        let mut connections = JoinSet::new();
        while let Some(accepted) = stop.run_until_cancelled(self.listener.accept()).await {
            while connections.try_join_next().is_some() {}
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    debug!(%error, "could not accept");
                    tokio::time::sleep(LOOK).await;
                    continue;
                }
            };
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

struct Secrets {
    store: Store,
}

impl Control for Secrets {
    type Client = Session;

    async fn connect(&self, _: Node, _: Peer) -> Result<Session, Status> {
        let news = self.store.subscribe();
        let current = news.borrow().clone();
        Ok(Session { news, current, wanted: BTreeMap::new(), files: Files::default() })
    }
}

/// One stream: what it wants and what that was when last looked at.
struct Session {
    news: watch::Receiver<Current>,
    current: Current,
    wanted: BTreeMap<Arc<str>, Secret>,
    files: Files,
}

impl Session {
    fn adopt(&mut self, names: &std::collections::BTreeSet<Arc<str>>) {
        let parse = |name: &Arc<str>| match Secret::parse(name) {
            Some(secret) => Some((Arc::clone(name), secret)),
            None => {
                warn!(%name, "Envoy asks for a secret that is none of ours");
                None
            }
        };
        self.wanted = names.iter().filter_map(parse).collect();
        self.files.read(self.wanted.values());
    }
}

impl Client for Session {
    async fn changed(&mut self) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        look.reset();
        let watches_files = self.wanted.values().any(|secret| !secret.files().is_empty());
        loop {
            tokio::select! {
                news = self.news.changed() => {
                    if news.is_err() {
                        return std::future::pending().await;
                    }
                    self.current = self.news.borrow_and_update().clone();
                    return;
                }
                _ = look.tick(), if watches_files => if self.files.read(self.wanted.values()) {
                    return;
                },
            }
        }
    }

    /// None while nothing that is wanted is there: Envoy then waits, and is told once it is.
    fn current(&mut self, kind: &TypeUrl) -> Option<Arc<ResourceSet>> {
        if *kind != TypeUrl::SECRET {
            return None;
        }
        let found = self.wanted.iter().filter_map(|(name, secret)| resource(name, secret, &self.current, &self.files));
        let set = ResourceSet::new(TypeUrl::SECRET, found);
        (!set.resources().is_empty()).then(|| Arc::new(set))
    }

    fn observe(&mut self, event: &Event<'_>) {
        match event {
            Event::Subscribed { names, .. } => self.adopt(names),
            Event::Unsubscribed { .. } => self.wanted.clear(),
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
