//! One client as the protocol sees it: its place in the world, and what it is served from there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use model::change::SourceId;
use model::proxy::Proxy;
use tokio::sync::watch;
use tonic::Status;
use tracing::{info, warn};
use xds::{Client, Control, Event, Peer, ResourceSet};

use crate::metrics::Metrics;
use crate::serve::clients::{Answer, Clients, Connection, Refusal};
use crate::serve::pace::Pace;
use crate::serve::views::{Cut, Slot, Views, is_served};
use crate::serve::world::{Epoch, World};

/// The control plane as the protocol asks it.
#[derive(Debug)]
pub struct Pilot {
    world: World,
    views: Arc<Views>,
    clients: Arc<Clients>,
    /// Sources that must be in sync before anybody is served.
    sources: BTreeSet<SourceId>,
}

impl Pilot {
    pub fn new(world: World, sources: BTreeSet<SourceId>) -> Pilot {
        Pilot { world, views: Arc::default(), clients: Arc::default(), sources }
    }

    pub fn world(&self) -> &World {
        &self.world
    }

    pub fn views(&self) -> &Arc<Views> {
        &self.views
    }

    /// Where to record.
    pub fn metrics(&self) -> &Arc<Metrics> {
        self.world.metrics()
    }

    pub fn clients(&self) -> &Arc<Clients> {
        &self.clients
    }

    /// Sources that have not told all they had at their start.
    pub fn missing_sources(&self) -> Vec<SourceId> {
        self.sources.difference(&self.world.now().snapshot.synced).cloned().collect()
    }
}

impl Control for Pilot {
    type Client = Session;

    async fn connect(&self, node: Node, peer: Peer) -> Result<Session, Status> {
        let proxy = Proxy::from_node(&node).map_err(|bad| Status::invalid_argument(bad.0))?;
        if !is_served(proxy.kind) {
            return Err(Status::invalid_argument(format!("node type of {} is not served", proxy.id)));
        }
        let missing = self.missing_sources();
        if let Some(first) = missing.first() {
            return Err(Status::unavailable(format!("waiting for {} to be in sync", first.0)));
        }
        let proxy = Arc::new(proxy);
        let mut epochs = self.world.epochs();
        let epoch = epochs.borrow_and_update().clone();
        let (slot, cut) = self.views.cut(&epoch, &proxy);
        let connection = self.clients.connect(proxy, peer.address);
        connection.adopt(cut.clone());
        info!(connection = connection.id, peer = ?peer.address, "connected");
        let (views, clients) = (self.views.clone(), self.clients.clone());
        let pace = Pace::new(self.metrics().clone());
        Ok(Session { epochs, views, clients, connection, _slot: slot, cut, pace })
    }
}

/// One connected client.
#[derive(Debug)]
pub struct Session {
    epochs: watch::Receiver<Arc<Epoch>>,
    views: Arc<Views>,
    clients: Arc<Clients>,
    connection: Arc<Connection>,
    /// Keeps the class alive as long as one of its clients is connected.
    _slot: Arc<Slot>,
    cut: Arc<Cut>,
    pace: Pace,
}

impl Client for Session {
    async fn changed(&mut self) {
        self.pace.idle();
        if self.epochs.changed().await.is_err() {
            // The writer has ended: the server is stopping, and nothing new will come.
            return std::future::pending().await;
        }
        let epoch = self.epochs.borrow_and_update().clone();
        self.pace.takes_up(epoch.at);
        (self._slot, self.cut) = self.views.cut(&epoch, &self.connection.proxy);
        self.connection.adopt(self.cut.clone());
    }

    fn current(&mut self, kind: &TypeUrl) -> Option<Arc<ResourceSet>> {
        self.pace.asks();
        self.cut.set(kind)
    }

    fn observe(&mut self, event: &Event<'_>) {
        match *event {
            Event::Subscribed { kind, wildcard, names } => self.connection.note(kind, |w| {
                w.wildcard = wildcard;
                w.names = names.clone();
            }),
            Event::Unsubscribed { kind } => self.connection.note(kind, |w| {
                w.wildcard = false;
                w.names = Arc::default();
            }),
            Event::Sent { kind, nonce, version, bytes, .. } => {
                self.pace.sent(kind, bytes);
                self.connection.note(kind, |w| {
                    w.sent = Some(Answer { nonce: nonce.to_owned(), version });
                    w.sent_at = Some(SystemTime::now());
                    w.bytes += bytes as u64;
                    w.pushes += 1;
                });
            }
            Event::Acked { kind, nonce, version } => self.connection.note(kind, |w| {
                w.acked = Some(Answer { nonce: nonce.to_owned(), version });
                w.refused = None;
            }),
            Event::Nacked { kind, nonce, version, code, message } => {
                warn!(connection = self.connection.id, kind = kind.short(), message, "rejected");
                self.pace.refused(kind, &self.connection.proxy.id, code);
                let answer = Answer { nonce: nonce.to_owned(), version };
                self.connection.note(kind, |w| w.refused = Some(Refusal { answer, code, message: message.to_owned() }));
            }
            Event::Stale { kind, .. } => self.pace.expired(kind),
            Event::Health { .. } => {}
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.clients.disconnect(&self.connection);
        info!(connection = self.connection.id, "disconnected");
    }
}
