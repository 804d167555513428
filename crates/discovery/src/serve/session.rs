//! One client's session: its snapshot, its view of it, and its quarantine.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use model::change::SourceId;
use model::printable::clipped;
use model::proxy::{CERTIFICATES_FOUND, NO_CERTIFICATES, Proxy};
use sources::source_set::SourceSet;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;
use tracing::{info, warn};
use xds::{Client, Control, Event, Executor, Peer, Rejection, ResourceSet, Verdict};

use crate::metrics::Metrics;
use crate::registration::{ProvenAccount, RegisteredStream, Registrar};
use crate::serve::caller;
use crate::serve::clients::{Answer, Clients, Connection, Watched};
use crate::serve::configs::Configs;
use crate::serve::history::Follower;
use crate::serve::journal::Journal;
use crate::serve::proxyless;
use crate::serve::push_timer::PushTimer;
use crate::serve::quarantine::{Judgement, Payer, Quarantine, Refuser, Register, Scene};
use crate::serve::refusals::Refusals;
use crate::serve::rendered::RenderedView;
use crate::serve::snapshot_writer::{PublishedSnapshot, SnapshotWriter};
use crate::serve::turns::Turns;
use crate::serve::views::{Placement, Views, is_served};
use crate::tls::TlsConnection;
use crate::trust::authenticate::Credentials;
use crate::trust::recheck::{CheckedCaller, StreamAuthentication};
use crate::trust::{BundleReceiver, Trust};
use crate::webhook::WebhookMetrics;

/// Bytes of a rejection's message in the log; debug pages show more.
const LOGGED_MESSAGE: usize = 1024;
/// Names of pinned or withheld objects in the log.
const LOGGED_NAMES: usize = 10;

/// The state that all sessions share.
#[derive(Debug)]
pub struct ControlPlane {
    world: SnapshotWriter,
    views: Arc<Views>,
    turns: Arc<Turns>,
    configs: Arc<Configs>,
    clients: Arc<Clients>,
    register: Arc<Register>,
    /// Sources; the required ones must sync before any client is served.
    sources: SourceSet,
    debug: Arc<OnceLock<Debug>>,
    refusals: Refusals,
    /// The certificate authority, if there is one.
    pub(crate) trust: Option<Arc<Trust>>,
    /// The trust bundle, if agents get one.
    pub(crate) bundle: Option<BundleReceiver>,
    /// Metrics of the webhooks, if they are served.
    pub(crate) webhook_metrics: Option<WebhookMetrics>,
    /// Registers workloads, if there is a place for their entries.
    pub(crate) registrar: Option<Registrar>,
    /// Set before anything is served; `None` if clients need not authenticate.
    pub(crate) authentication: Option<StreamAuthentication>,
}

type MakeSet = dyn Fn(&TypeUrl) -> Option<Arc<ResourceSet>> + Send + Sync;

/// Renders debug pages.
struct Debug(Box<MakeSet>);

impl fmt::Debug for Debug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Debug")
    }
}

impl ControlPlane {
    pub fn new(world: SnapshotWriter, sources: SourceSet) -> ControlPlane {
        let register = Register::new(world.changes(), world.snapshots());
        let views = Arc::new(Views::new(world.changes()));
        ControlPlane {
            world,
            views,
            turns: Arc::default(),
            configs: Arc::default(),
            clients: Arc::default(),
            register,
            sources,
            debug: Arc::default(),
            refusals: Refusals::default(),
            trust: None,
            bundle: None,
            webhook_metrics: None,
            registrar: None,
            authentication: None,
        }
    }

    /// Sets the renderer of debug pages that are requested over xDS.
    pub fn answer_debug(&self, answer: impl Fn(&TypeUrl) -> Option<Arc<ResourceSet>> + Send + Sync + 'static) {
        // Called once, at start-up; further calls have no effect.
        let _ = self.debug.set(Debug(Box::new(answer)));
    }

    /// The connected clients.
    pub fn sources(&self) -> &SourceSet {
        &self.sources
    }

    pub fn world(&self) -> &SnapshotWriter {
        &self.world
    }

    pub fn views(&self) -> &Arc<Views> {
        &self.views
    }

    /// The metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        self.world.metrics()
    }

    pub fn clients(&self) -> &Arc<Clients> {
        &self.clients
    }

    /// Pins and withheld resources of all clients.
    pub fn register(&self) -> &Register {
        &self.register
    }

    /// Drops caches that no connected client uses.
    pub(crate) fn free_unused(&self) {
        self.views.free_unused(&self.world.now());
        self.configs.retain(|kind| self.clients.watch(kind));
    }

    /// Config objects, if the client may read them: it has proved to be of the root namespace, or the mesh requires no
    /// proof.
    pub(super) fn readable_configs(&self, peer: &Peer) -> Result<Arc<Configs>, Status> {
        let settings = &self.world.now().snapshot.settings;
        let (root, proven) = (settings.root_namespace(), caller::proven_namespace(peer));
        if !settings.knobs.api_generator_auth || proven.as_deref() == Some(root.as_str()) {
            return Ok(self.configs.clone());
        }
        match proven {
            None => {
                Err(Status::unauthenticated("configuration is served only to clients with a certificate of the mesh"))
            }
            Some(other) => Err(Status::permission_denied(format!(
                "configuration is served only to clients of namespace {root}, not of {other}"
            ))),
        }
    }

    /// The same for an xDS client: one that asks for other resources is served without config objects.
    fn configs_for(&self, proxy: &Proxy, peer: &Peer) -> Result<Option<Arc<Configs>>, Status> {
        match self.readable_configs(peer) {
            Err(status) if proxy.meta("GENERATOR") == Some("api") => Err(status),
            readable => Ok(readable.ok()),
        }
    }

    /// Authenticates a client and adds its identities to the peer. `None` if it need not authenticate.
    pub(super) async fn authenticated(&self, peer: &mut Peer) -> Result<Option<CheckedCaller>, Status> {
        let Some(authentication) = &self.authentication else { return Ok(None) };
        let is_encrypted = peer.extensions.get::<TlsConnection>().is_some();
        if !is_encrypted && !authentication.plain_text_too {
            return Ok(None);
        }
        let checked = authentication.authenticate(Credentials::new(&peer.headers, &peer.extensions)).await?;
        peer.extensions.insert(checked.caller.clone());
        Ok(Some(checked))
    }

    /// Required sources that have not synced yet.
    pub fn missing_sources(&self) -> Vec<SourceId> {
        self.sources.unsynced(&self.world.now().snapshot.synced)
    }
}

impl Control for ControlPlane {
    type Client = Session;

    async fn connect(&self, mut node: Node, mut peer: Peer) -> Result<Session, Status> {
        let is_near = peer.address.is_some_and(|address| address.ip().is_loopback());
        // istioctl, which only reads debug pages.
        let looking = node.id.strip_prefix("debug~").filter(|_| is_near).map(|rest| format!("sidecar~{rest}"));
        let is_looking = looking.is_some();
        node.id = looking.unwrap_or(node.id);
        let mut proxy = Proxy::from_node(&node).map_err(|bad| Status::invalid_argument(bad.0))?;
        // The node is part of Envoy's bootstrap, which stays as it was written.
        if peer.headers.contains_key(CERTIFICATES_FOUND) {
            proxy.metadata.remove(NO_CERTIFICATES);
        }
        if !is_served(proxy.kind) {
            return Err(Status::invalid_argument(format!("node type of {} is not served", proxy.id)));
        }
        let checked = if is_looking { None } else { self.authenticated(&mut peer).await? };
        let missing = self.missing_sources();
        if let Some(first) = missing.first() {
            return Err(Status::unavailable(format!("waiting for source {} to sync", first.0)));
        }
        let configs = self.configs_for(&proxy, &peer)?;
        let mut snapshots = self.world.snapshots();
        let published = snapshots.borrow_and_update().clone();
        let knobs = &published.snapshot.settings.knobs;
        let identity = if is_looking { None } else { caller::identified(&peer, &proxy, knobs)? };
        let may_have_secrets = caller::may_have_secrets(identity.as_ref(), &peer, knobs);
        let payer = Payer::of(identity.as_ref(), &peer);
        let connection = self.clients.connect(Arc::new(proxy), peer.address);
        let arrival = Arrival { clients: &self.clients, connection: Some(connection.clone()) };
        let registered = match &self.registrar {
            Some(registrar) if !is_looking => {
                let proven = identity.as_ref();
                let proven = proven.map(|of| ProvenAccount { namespace: &of.namespace, account: &of.account });
                registrar.register(connection.number, &connection.proxy, proven, &published.snapshot)?
            }
            _ => None,
        };
        let client = connection.proxy.id.clone();
        let refuser = match identity {
            Some(identity) => Refuser::Proven { identity, client },
            None => Refuser::Stream { number: connection.number, client },
        };
        let quarantine = Quarantine::new(published.number, self.register.pins(&published.snapshot, &refuser));
        let follower = published.history.follow(published.number);
        let executor = self.turns.executor(&connection.proxy.namespace);
        let (views, at, of) = (self.views.clone(), published.clone(), connection.proxy.clone());
        let pins = quarantine.pins().clone();
        let (placement, cut) = executor.run(move || views.cut(&at, &of, &pins, None)).await?;
        arrival.served();
        connection.adopt(cut.clone());
        info!(connection = connection.id, peer = ?peer.address, "client connected");
        let (views, clients) = (self.views.clone(), self.clients.clone());
        let timer = PushTimer::new(self.metrics().clone(), self.world.round().clone());
        let register = self.register.clone();
        let debug = is_near.then(|| self.debug.clone());
        let is_proxyless = proxyless::is_proxyless(&connection.proxy);
        Ok(Session {
            debug,
            snapshots,
            published,
            views,
            configs,
            clients,
            register,
            connection,
            placement,
            cut,
            quarantine,
            follower,
            timer,
            journal: self.world.journal().clone(),
            refuser,
            payer,
            may_have_secrets,
            is_proxyless,
            executor,
            checked,
            registered,
            bundle: self.bundle.clone().map(seen),
        })
    }

    fn refused(&self, address: Option<SocketAddr>, status: &Status) {
        self.metrics().refused_stream(status.code());
        self.refusals.report(address, status);
    }
}

/// A receiver that reports only later bundles: the current one is read when it is requested.
fn seen(mut bundle: BundleReceiver) -> BundleReceiver {
    bundle.mark_unchanged();
    bundle
}

/// A connection before its client is served; disconnected if the client leaves before.
struct Arrival<'a> {
    clients: &'a Clients,
    connection: Option<Arc<Connection>>,
}

impl Arrival<'_> {
    /// The session takes over the connection.
    fn served(mut self) {
        self.connection = None;
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection {
            self.clients.disconnect(connection);
        }
    }
}

/// One connected client.
#[derive(Debug)]
pub struct Session {
    snapshots: watch::Receiver<Arc<PublishedSnapshot>>,
    published: Arc<PublishedSnapshot>,
    views: Arc<Views>,
    /// Config objects, if this client may read them.
    configs: Option<Arc<Configs>>,
    clients: Arc<Clients>,
    register: Arc<Register>,
    connection: Arc<Connection>,
    /// Its class, which exists as long as one of its clients is connected.
    placement: Placement,
    cut: Arc<RenderedView>,
    quarantine: Quarantine,
    /// Keeps earlier versions of objects that this client may still reject.
    follower: Follower,
    timer: PushTimer,
    journal: Arc<Journal>,
    refuser: Refuser,
    /// The account for searches after its rejections.
    payer: Payer,
    may_have_secrets: bool,
    /// A gRPC application without an Envoy.
    is_proxyless: bool,
    /// Debug pages, for clients on the same machine.
    debug: Option<Arc<OnceLock<Debug>>>,
    /// Runs its work.
    executor: Executor,
    /// Its credentials, which are checked again from time to time.
    checked: Option<CheckedCaller>,
    /// Its WorkloadEntry, if it has registered.
    registered: Option<RegisteredStream>,
    /// The trust bundle, if agents get one.
    bundle: Option<BundleReceiver>,
}

impl Session {
    /// Renders the client's snapshot with its pins.
    fn recut(&mut self) {
        let (proxy, pins) = (&self.connection.proxy, self.quarantine.pins());
        (self.placement, self.cut) = self.views.cut(&self.published, proxy, pins, Some(&self.placement));
        self.connection.adopt(self.cut.clone());
    }

    /// Moves on to a snapshot; its resources are rendered afterwards.
    fn follow(&mut self, published: Arc<PublishedSnapshot>) {
        self.published = published;
        self.timer.adopted(self.published.instant);
        if self.quarantine.follow(self.published.number, &self.published.snapshot) {
            self.register.follow();
        }
        self.follower.accepts(self.quarantine.accepted_in_all());
    }
}

impl Client for Session {
    async fn changed(&mut self) {
        self.timer.idle();
        let Session { snapshots, bundle, .. } = self;
        let bundle = async {
            match bundle {
                Some(bundle) => bundle.changed().await.is_ok(),
                None => false,
            }
        };
        let is_changed = tokio::select! {
            biased;
            changed = snapshots.changed() => changed.is_ok(),
            true = bundle => true,
        };
        if !is_changed {
            // The writer has ended because the server is stopping; there are no further snapshots.
            std::future::pending::<()>().await;
        }
    }

    fn ended(&self) -> Pin<Box<dyn Future<Output = Status> + Send>> {
        match self.checked.clone() {
            Some(checked) => Box::pin(checked.ended()),
            None => Box::pin(std::future::pending()),
        }
    }

    fn executor(&self) -> Executor {
        self.executor.clone()
    }

    fn adopt(&mut self) {
        let published = self.snapshots.borrow_and_update().clone();
        self.follow(published);
        self.recut();
    }

    fn adopt_quickly(&mut self) -> bool {
        let published = self.snapshots.borrow_and_update().clone();
        let proxy = &self.connection.proxy;
        let Some(cut) = self.views.cut_quickly(&published, proxy, &mut self.placement, &self.cut) else { return false };
        self.cut = cut;
        self.follow(published);
        self.connection.adopt(self.cut.clone());
        true
    }

    fn is_quick<'a>(&mut self, kind: &TypeUrl, unlisted: impl Iterator<Item = &'a str>) -> bool {
        let is_withheld = self.quarantine.withheld().next().is_some();
        !is_withheld && !self.is_proxyless && self.cut.is_quick(kind, unlisted)
    }

    fn current(&mut self, kind: &TypeUrl) -> Option<Arc<ResourceSet>> {
        if kind.is_debug() {
            return self.debug.as_ref()?.get().and_then(|debug| (debug.0)(kind));
        }
        if *kind == TypeUrl::SECRET && !self.may_have_secrets {
            return None;
        }
        if *kind == TypeUrl::PROXY_CONFIG {
            return self.bundle.as_mut().and_then(|bundle| bundle.borrow_and_update().clone());
        }
        self.timer.requested();
        if self.is_proxyless
            && let Some(set) = proxyless::set(&self.cut, &self.connection.proxy, kind)
        {
            return Some(set);
        }
        let Some(set) = self.cut.set(kind) else { return self.configs.as_ref()?.set(&self.published, kind) };
        let withheld = self.quarantine.withheld().count();
        let set = self.quarantine.overlay(kind, set);
        if self.quarantine.withheld().count() < withheld {
            let stream = self.connection.number;
            self.register.set_resources(stream, &self.refuser, "", self.quarantine.withheld());
        }
        Some(set)
    }

    fn may_debug(&self) -> bool {
        self.debug.is_some()
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
                self.timer.sent(kind, bytes);
                self.connection.sent_response();
                if self.cut.set(kind).is_some() {
                    self.quarantine.sent(kind, self.cut.number);
                }
                if *kind == TypeUrl::LISTENER {
                    self.quarantine.guarded(self.cut.guards());
                }
                self.connection.note(kind, |w| {
                    w.sent = Some(Answer { nonce: nonce.to_owned(), version });
                    w.sent_at = Some(SystemTime::now());
                    w.bytes += bytes as u64;
                    w.pushes += 1;
                });
            }
            Event::UpToDate { kind } => {
                self.quarantine.up_to_date(kind, self.cut.number);
                self.connection.note(kind, Watched::up_to_date);
                self.follower.accepts(self.quarantine.accepted_in_all());
            }
            Event::Acked { kind, nonce, version } => {
                self.quarantine.accepted(kind);
                self.follower.accepts(self.quarantine.accepted_in_all());
                self.connection.note(kind, |w| {
                    w.acked = Some(Answer { nonce: nonce.to_owned(), version });
                    w.refused = None;
                });
            }
            Event::Nacked { kind, nonce, version, code, message } => {
                let reason = clipped(message, LOGGED_MESSAGE);
                warn!(connection = self.connection.id, kind = kind.short(), reason, "Envoy rejected a response");
                self.quarantine.refused(kind);
                self.timer.refused(kind);
                let answer = Answer { nonce: nonce.to_owned(), version };
                let number = self.cut.number;
                self.connection.note(kind, |w| w.refuse(answer, number, code, message));
            }
            Event::Settled => {
                if self.connection.settled(self.cut.number) {
                    self.journal.acknowledged(self.cut.number, &self.connection.proxy.id);
                    self.timer.acknowledged(self.published.instant);
                }
            }
            Event::Stale { kind, .. } => self.timer.expired(kind),
            Event::Health { error } => self.registered.iter().for_each(|registered| registered.report(error)),
        }
    }

    fn delivered(&mut self, took: Duration) {
        self.timer.delivered(took);
    }

    fn rejected(&mut self, rejection: &Rejection<'_>) -> Verdict {
        let (kind, message) = (rejection.kind, rejection.message);
        if rejection.offered.is_empty() || self.is_proxyless || self.cut.set(kind).is_none() {
            // Only a removal was rejected, or a config object for another control plane, or gRPC lacks a feature that
            // Envoy has; nothing can be withheld.
            return Verdict::Unchanged;
        }
        let Some(current) = self.current(kind) else { return Verdict::Unchanged };
        let (begun, left) = (Instant::now(), self.register.search_time(&self.payer));
        let scene = Scene {
            published: &self.published,
            proxy: &self.connection.proxy,
            views: &self.views,
            register: &self.register,
            refuser: &self.refuser,
            current: &current,
            guards: self.cut.guards(),
            until: begun + left,
        };
        let judgement = aside(|| self.quarantine.judge(rejection, &scene));
        self.register.searched(&self.payer, begun);
        let (connection, stream) = (&self.connection.id, self.connection.number);
        if left.is_zero() {
            warn!(connection, peer = ?self.connection.peer, "too many rejections; not looking for the rejected object");
        }
        match judgement {
            Judgement::Overtaken => {}
            Judgement::Objects(pins) => {
                let objects: Vec<String> = pins.keys().take(LOGGED_NAMES).map(ToString::to_string).collect();
                let count = pins.len();
                let kind_name = kind.short();
                warn!(
                    connection,
                    kind = kind_name,
                    count,
                    ?objects,
                    "Envoy rejected objects; serving previous versions"
                );
                self.register.add_objects(&self.refuser, kind, message, &pins);
                self.recut();
            }
            Judgement::Resources(names) => {
                let (count, resources) = (names.len(), names.get(..LOGGED_NAMES).unwrap_or(&names));
                warn!(connection, kind = kind.short(), count, ?resources, "Envoy rejected resources; withholding them");
                self.register.set_resources(stream, &self.refuser, message, self.quarantine.withheld());
            }
        }
        Verdict::Changed
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.clients.disconnect(&self.connection);
        if self.quarantine.withheld().next().is_some() || !self.quarantine.pins().is_empty() {
            self.register.leave(self.connection.number, &self.refuser);
        }
        info!(connection = self.connection.id, "client disconnected");
    }
}

/// Runs long work without blocking other tasks of this thread.
fn aside<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
