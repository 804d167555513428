//! Connected clients, and what each was sent, accepted and rejected: for debug pages and metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use api::{TypeUrl, Version};
use model::printable::clipped;
use model::proxy::Proxy;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::serve::rendered::RenderedView;

/// Every connected client, by connection.
#[derive(Debug, Default)]
pub struct Clients {
    next: AtomicU64,
    connected: Mutex<BTreeMap<u64, Arc<Connection>>>,
    left: Notify,
}

/// One stream.
#[derive(Debug)]
pub struct Connection {
    /// `name.namespace-7`, numbered as upstream numbers its streams.
    pub id: String,
    pub proxy: Arc<Proxy>,
    pub peer: Option<SocketAddr>,
    pub since: SystemTime,
    /// Number of the stream, counted over all clients.
    pub number: u64,
    types: Mutex<BTreeMap<TypeUrl, Watched>>,
    cut: Mutex<Option<Arc<RenderedView>>>,
    holding: Mutex<HoldingState>,
}

/// Up to which snapshot a client has everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct HoldingState {
    /// The last snapshot of which the client had answered everything.
    pub number: u64,
    /// Since when nothing is under way; `None` while the client has to answer.
    pub since: Option<Instant>,
    /// A response was sent since `number` was reached.
    is_sent: bool,
}

/// The state of one type on one stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Watched {
    pub wildcard: bool,
    /// Names subscribed to, shared with the stream.
    pub names: Arc<BTreeSet<Arc<str>>>,
    pub sent: Option<Answer>,
    pub acked: Option<Answer>,
    /// The last rejection, until a newer response is accepted.
    pub refused: Option<Refusal>,
    /// Rejections so far, by gRPC code.
    pub refusals: BTreeMap<i32, u64>,
    pub sent_at: Option<SystemTime>,
    /// When the client was first found to hold everything without a response, as after a reconnect.
    pub held_at: Option<SystemTime>,
    pub bytes: u64,
    pub pushes: u64,
}

/// Nonce and version of one response.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub nonce: String,
    pub version: Version,
}

/// A response that the client rejected.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub answer: Answer,
    pub code: i32,
    /// The snapshot whose resources were rejected.
    pub number: u64,
    pub at: SystemTime,
    /// The beginning of the client's message.
    pub message: String,
}

/// Bytes of a rejection's message that are kept for debug pages.
const LONGEST_MESSAGE: usize = 4 * 1024;

/// Shown as the nonce of resources that a client had before it connected.
const HELD_BEFORE: &str = "held-before";

impl Watched {
    /// Nonces of the last response that was sent and of the last one that was accepted. They are equal for a client that
    /// reconnected with the current resources and was sent nothing.
    pub fn nonces(&self) -> (Option<&str>, Option<&str>) {
        fn nonce(answer: &Option<Answer>) -> Option<&str> {
            answer.as_ref().map(|answer| &*answer.nonce)
        }
        let held = self.held_at.filter(|_| self.sent.is_none()).map(|_| HELD_BEFORE);
        (nonce(&self.sent).or(held), nonce(&self.acked).or(held))
    }

    /// When the client was last sent something, or was first found to hold everything.
    pub fn updated_at(&self) -> Option<SystemTime> {
        self.sent_at.or(self.held_at)
    }

    /// Records that nothing has to be sent.
    pub fn up_to_date(&mut self) {
        if self.sent.is_none() && self.held_at.is_none() {
            self.held_at = Some(SystemTime::now());
        }
    }

    /// Records a rejected response.
    pub fn refuse(&mut self, answer: Answer, number: u64, code: i32, message: &str) {
        // Codes unknown to gRPC are counted together.
        *self.refusals.entry(tonic::Code::from_i32(code) as i32).or_default() += 1;
        let message = clipped(message, LONGEST_MESSAGE).to_owned();
        self.refused = Some(Refusal { answer, code, number, at: SystemTime::now(), message });
    }
}

impl Clients {
    /// Adds a stream; `disconnect` removes it.
    pub fn connect(&self, proxy: Arc<Proxy>, peer: Option<SocketAddr>) -> Arc<Connection> {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let connection = Arc::new(Connection {
            id: format!("{}-{number}", proxy.id),
            proxy,
            peer,
            since: SystemTime::now(),
            number,
            types: Mutex::default(),
            cut: Mutex::default(),
            holding: Mutex::default(),
        });
        self.connected.lock().insert(number, connection.clone());
        connection
    }

    pub fn disconnect(&self, connection: &Connection) {
        self.connected.lock().remove(&connection.number);
        self.left.notify_one();
    }

    /// Resolves when a client has disconnected since the last call. For one waiter.
    pub async fn left(&self) {
        self.left.notified().await;
    }

    /// Whether any client watches this type.
    pub fn watch(&self, kind: &TypeUrl) -> bool {
        self.all().iter().any(|connection| connection.types.lock().contains_key(kind))
    }

    /// Number of streams.
    pub fn count(&self) -> usize {
        self.connected.lock().len()
    }

    /// All streams, oldest first.
    pub fn all(&self) -> Vec<Arc<Connection>> {
        self.connected.lock().values().cloned().collect()
    }

    /// The newest stream of a proxy, by `name.namespace` or connection id.
    pub fn find(&self, proxy: &str) -> Option<Arc<Connection>> {
        self.connected.lock().values().rev().find(|c| *c.proxy.id == *proxy || c.id == proxy).cloned()
    }
}

impl Connection {
    /// The state of each type.
    pub fn watched(&self) -> BTreeMap<TypeUrl, Watched> {
        self.types.lock().clone()
    }

    /// Reads the state of each type without copying it.
    pub fn look<T>(&self, read: impl FnOnce(&BTreeMap<TypeUrl, Watched>) -> T) -> T {
        read(&self.types.lock())
    }

    /// Rejections of one type so far, by gRPC code.
    pub fn refusals(&self, kind: &TypeUrl) -> BTreeMap<i32, u64> {
        self.types.lock().get(kind).map(|watched| watched.refusals.clone()).unwrap_or_default()
    }

    /// Whether the client only reads debug pages, as istioctl does.
    pub fn only_looks(&self) -> bool {
        let types = self.types.lock();
        !types.is_empty() && types.keys().all(TypeUrl::is_debug)
    }

    /// Updates the state of one type.
    pub fn note(&self, kind: &TypeUrl, change: impl FnOnce(&mut Watched)) {
        change(self.types.lock().entry(kind.clone()).or_default());
    }

    /// Up to which snapshot the client has everything.
    pub fn holding(&self) -> HoldingState {
        *self.holding.lock()
    }

    /// A response was sent, which the client has to answer.
    pub(crate) fn sent_response(&self) {
        let mut holding = self.holding.lock();
        (holding.since, holding.is_sent) = (None, true);
    }

    /// The client has answered everything of this snapshot. Returns whether that took a response.
    pub(crate) fn settled(&self, number: u64) -> bool {
        let mut holding = self.holding.lock();
        let is_sent = std::mem::take(&mut holding.is_sent);
        if holding.since.is_none() {
            holding.since = Some(Instant::now());
        }
        holding.number = number;
        is_sent
    }

    /// Records the view that this client is served.
    pub fn cut(&self) -> Option<Arc<RenderedView>> {
        self.cut.lock().clone()
    }

    pub(crate) fn adopt(&self, cut: Arc<RenderedView>) {
        *self.cut.lock() = Some(cut);
    }
}
