//! The system under test: sources, two replicas, recorded proxies and a real Envoy, each behind its own link.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::disk::SmallDisk;
use super::replica::Replica;
use super::sources::{GATEWAY, MeshSources, PRIVATE_HOST, SERVICES, SourceKind};
use crate::clock::JumpingClock;
use crate::envoy::{Admin, Bootstrap, Envoy, XdsTransport};
use crate::fleet::node;
use crate::forwarder::TcpForwarder;
use crate::promises::content::{Marker, ResourceKind};
use crate::promises::history::EnvoyDump;
use crate::promises::proxy::{ProxyOptions, ProxyTarget, RecordedProxy};
use crate::promises::{Event, FaultScope, History, MeshPart, ProxyName, real};
use crate::slow_disk::SlowDisk;
use crate::{servers, wait};

pub(super) const REPLICAS: usize = 2;
/// Name of the real Envoy.
const ENVOY: &str = "envoy";
/// Interval at which the configuration of the Envoy is recorded.
const RECORD_INTERVAL: Duration = Duration::from_millis(500);

/// How a recorded proxy is made.
#[derive(Clone, Debug)]
struct ProxyRole {
    number: usize,
    kind: &'static str,
    transport: XdsTransport,
    rejects: u8,
}

impl ProxyRole {
    fn name(&self) -> ProxyName {
        let transport = if self.transport == XdsTransport::Delta { "delta" } else { "sotw" };
        let manner = if self.rejects > 0 { "-rejecting" } else { "" };
        format!("{}{}-{transport}{manner}", self.kind, self.number).into()
    }

    fn options(&self, seed: u64) -> ProxyOptions {
        let app = if self.kind == "router" { "gateway" } else { "client" };
        let secrets = if self.kind == "router" { vec![format!("kubernetes://{}", GATEWAY.1)] } else { Vec::new() };
        ProxyOptions {
            name: self.name(),
            node: node(self.kind, self.number, app),
            transport: self.transport,
            rejects: self.rejects,
            secrets,
            seed,
            planted: None,
        }
    }
}

pub(super) struct ConnectedProxy {
    role: ProxyRole,
    pub(super) proxy: RecordedProxy,
    pub(super) link: TcpForwarder,
    target: watch::Sender<ProxyTarget>,
}

impl ConnectedProxy {
    /// Whether it accepts everything.
    pub(super) fn is_honest(&self) -> bool {
        self.role.rejects == 0
    }

    fn replica(&self) -> usize {
        self.target.borrow().replica
    }
}

/// A real Envoy on the first replica. What it uses is recorded all the time: the repair of a fault may take a minute.
pub(super) struct WatchedEnvoy {
    pub(super) envoy: Envoy,
    _link: TcpForwarder,
    dumps: Arc<EnvoyDumps>,
    recording: AbortHandle,
}

impl Drop for WatchedEnvoy {
    fn drop(&mut self) {
        self.recording.abort();
    }
}

/// Records what the Envoy uses, in the order in which it reported it.
struct EnvoyDumps {
    admin: Admin,
    history: History,
    turn: tokio::sync::Mutex<()>,
}

impl EnvoyDumps {
    /// Records and returns what the Envoy uses; nothing if it does not answer.
    async fn dump(&self) -> Option<EnvoyDump> {
        let _turn = self.turn.lock().await;
        let dump = tokio::time::timeout(Duration::from_secs(2), self.admin.config_dump()).await;
        let dump = real::of_dump(&dump.ok()?.ok()?);
        self.history.record(Event::Dumped { proxy: ENVOY.into(), dump: dump.clone() });
        Some(dump)
    }
}

pub struct World {
    /// The disk of the state folder of replicas, if this user may mount one. Unmounted before its folder is removed.
    pub(super) small_disk: Option<SmallDisk>,
    pub(super) history: History,
    pub(super) sources: MeshSources,
    pub(super) replicas: Vec<Replica>,
    pub(super) proxies: Vec<ConnectedProxy>,
    pub(super) envoy: Option<WatchedEnvoy>,
    /// What sources have now.
    inputs: BTreeMap<(SourceKind, usize), BTreeSet<String>>,
    /// Sources that cannot be changed now.
    pub(super) frozen: BTreeSet<SourceKind>,
    /// The whole content of a file of which only the first half was written.
    pub(super) half_written: Option<Vec<u8>>,
    /// The clock of all replicas.
    pub(super) clock: JumpingClock,
    /// The disk of all replicas.
    pub(super) disk: SlowDisk,
    binary: PathBuf,
    addresses: u32,
    pub(super) random: fastrand::Rng,
}

impl World {
    /// Starts everything and waits until all proxies have everything.
    pub async fn start(binary: &Path, seed: u64) -> World {
        let sources = MeshSources::start().await;
        let roles = roles();
        let allowed = |numbers: &[usize]| {
            let mine = roles.iter().filter(|role| numbers.contains(&role.number));
            mine.map(ProxyRole::name).collect()
        };
        let mut markers = vec![Marker { bytes: PRIVATE_HOST.into(), allowed: allowed(&[0]) }];
        if let Some(kubernetes) = &sources.kubernetes {
            let secret = kubernetes.key.lines().nth(1).unwrap_or_else(|| panic!("a key without content"));
            markers.push(Marker { bytes: secret.into(), allowed: allowed(&[6]) });
        }
        let clock = JumpingClock::new(sources.folder());
        let disk = SlowDisk::new(sources.folder(), &sources.config());
        let small_disk = SmallDisk::mount(sources.folder());
        let mut world = World {
            history: History::new(markers),
            sources,
            replicas: Vec::new(),
            proxies: Vec::new(),
            envoy: None,
            inputs: BTreeMap::new(),
            frozen: BTreeSet::new(),
            half_written: None,
            clock,
            disk,
            small_disk,
            binary: binary.to_owned(),
            addresses: 0,
            random: fastrand::Rng::with_seed(seed),
        };
        for (kind, service) in world.services() {
            let endpoints = world.fresh_endpoints(2);
            world.set(kind, service, endpoints).await;
        }
        for number in 0..REPLICAS {
            let replica = world.start_replica(&format!("replica{number}")).await;
            world.replicas.push(replica);
        }
        for replica in &mut world.replicas {
            replica.ready().await;
        }
        for (number, role) in roles.into_iter().enumerate() {
            world.connect(role, number % REPLICAS).await;
        }
        if !servers::without("envoy") {
            world.envoy = Some(world.start_envoy().await);
        }
        world.settle(Duration::from_secs(120)).await.unwrap_or_else(|late| panic!("proxies have no endpoints: {late}"));
        world
    }

    async fn start_replica(&self, name: &str) -> Replica {
        let state = self.small_disk.as_ref().map(|disk| disk.folder(name));
        Replica::start(&self.binary, &self.sources, name, self.disk.env(self.clock.env()), state).await
    }

    async fn connect(&mut self, role: ProxyRole, replica: usize) {
        let link = TcpForwarder::start().await;
        link.forward_to(self.replicas[replica].grpc);
        let (target, targets) = watch::channel(ProxyTarget { address: link.address(), replica });
        if role.rejects > 0 {
            // Rejected resources are kept in an older version by design.
            let scope = FaultScope::of([MeshPart::Proxy(role.name())]);
            self.history.record(Event::FaultBegun { fault: format!("{} rejects", role.name()).into(), scope });
        }
        let proxy = RecordedProxy::start(&self.history, role.options(self.random.u64(..)), targets);
        self.proxies.push(ConnectedProxy { role, proxy, link, target });
    }

    async fn start_envoy(&self) -> WatchedEnvoy {
        let link = TcpForwarder::start().await;
        link.forward_to(self.replicas[0].grpc);
        let labels = json!({"app": "client"});
        let bootstrap = Bootstrap::sidecar(link.address().port(), XdsTransport::Delta, ENVOY, "ns1", labels);
        let mut envoy = Envoy::start(&bootstrap).await;
        envoy.ready().await;
        self.history.record(Event::Connected { proxy: ENVOY.into(), replica: 0 });
        let (admin, history) = (envoy.admin().clone(), self.history.clone());
        let dumps = Arc::new(EnvoyDumps { admin, history, turn: tokio::sync::Mutex::default() });
        let recorded = dumps.clone();
        let recording = tokio::spawn(async move {
            loop {
                recorded.dump().await;
                tokio::time::sleep(RECORD_INTERVAL).await;
            }
        });
        WatchedEnvoy { envoy, _link: link, dumps, recording: recording.abort_handle() }
    }

    /// All services, by source.
    fn services(&self) -> Vec<(SourceKind, usize)> {
        self.sources.kinds().into_iter().flat_map(|kind| (0..SERVICES).map(move |service| (kind, service))).collect()
    }

    /// Addresses that were never used before.
    pub(super) fn fresh_endpoints(&mut self, count: usize) -> BTreeSet<String> {
        let address = |_| {
            self.addresses += 1;
            Ipv4Addr::from((11 << 24) + self.addresses).to_string()
        };
        (0..count).map(address).collect()
    }

    /// Replaces the endpoints of a service and records it.
    pub(super) async fn set(&mut self, kind: SourceKind, service: usize, endpoints: BTreeSet<String>) {
        let mut from = self.inputs.get(&(kind, service)).cloned().unwrap_or_default();
        for step in MeshSources::steps(kind, &from, &endpoints) {
            let begun = self.history.now();
            self.sources.set(kind, service, &from, &step).await;
            self.recorded(kind, service, step.clone(), begun);
            from = step;
        }
    }

    /// Records that a service has these endpoints, since a change that began then.
    pub(super) fn recorded(&mut self, kind: SourceKind, service: usize, endpoints: BTreeSet<String>, begun: Duration) {
        self.history.record(Event::Input {
            source: kind.name().into(),
            service: kind.cluster(service).into(),
            endpoints: endpoints.clone(),
            begun,
        });
        self.inputs.insert((kind, service), endpoints);
    }

    pub(super) fn endpoints(&self, kind: SourceKind, service: usize) -> BTreeSet<String> {
        self.inputs.get(&(kind, service)).cloned().unwrap_or_default()
    }

    /// Changes a service of a source that can be changed now.
    pub(super) async fn change(&mut self) {
        let possible: Vec<(SourceKind, usize)> =
            self.services().into_iter().filter(|(kind, _)| !self.frozen.contains(kind)).collect();
        let Some((kind, service)) = self.random.choice(possible) else { return };
        let can_be_empty = kind != SourceKind::Copilot;
        let count = if can_be_empty && self.random.u8(..10) == 0 { 0 } else { self.random.usize(1..4) };
        let endpoints = self.fresh_endpoints(count);
        self.set(kind, service, endpoints).await;
    }

    /// Moves proxies of one replica to another.
    pub(super) fn move_proxies(&self, from: usize, to: usize) {
        for proxy in self.proxies.iter().filter(|proxy| proxy.replica() == from) {
            proxy.target.send_replace(ProxyTarget { address: proxy.link.address(), replica: to });
            proxy.link.forward_to(self.replicas[to].grpc);
        }
    }

    /// Gives each replica its share of the proxies again.
    pub(super) fn spread_proxies(&self) {
        for (number, proxy) in self.proxies.iter().enumerate() {
            let replica = number % REPLICAS;
            proxy.target.send_replace(ProxyTarget { address: proxy.link.address(), replica });
            proxy.link.forward_to(self.replicas[replica].grpc);
        }
    }

    /// Closes the connection of a proxy, which then opens a new one.
    pub(super) fn reconnect(&self, number: usize) {
        let proxy = &self.proxies[number];
        proxy.link.cut();
        proxy.link.forward_to(self.replicas[proxy.replica()].grpc);
    }

    /// Writes the rest of a half-written file, unless it was replaced meanwhile.
    pub(super) fn complete_half_written(&mut self) {
        let Some(whole) = self.half_written.take() else { return };
        let path = self.sources.config().join("f0.yaml");
        if std::fs::read(&path).is_ok_and(|now| now == whole[..whole.len() / 2]) {
            std::fs::write(&path, whole).unwrap_or_else(|e| panic!("could not complete a file: {e}"));
        }
    }

    /// Waits until all honest proxies and the Envoy have the endpoints that sources have. The error names those that do not.
    pub(super) async fn settle(&mut self, limit: Duration) -> Result<Duration, String> {
        let begun = self.history.now();
        loop {
            self.replicas.iter_mut().for_each(Replica::check_alive);
            let late = self.late().await;
            if late.is_empty() {
                return Ok(self.history.now() - begun);
            }
            if self.history.now() - begun > limit {
                return Err(format!("{}{}", late.join(", "), self.diagnosis().await));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// What the Envoy and its replica report, for proxies that are late.
    async fn diagnosis(&self) -> String {
        let Some(watched) = &self.envoy else { return String::new() };
        let admin = watched.envoy.admin();
        let stats = admin.stats("control_plane|cds\\.|lds\\.|warming").await;
        let (warming, page) = (admin.warming().await, self.replicas[0].page("/debug/syncz").await);
        format!("\nEnvoy waits for {warming:?}, counts {stats:?}\nits replica reports {page:?}")
    }

    async fn late(&self) -> Vec<String> {
        let envoy = self.dump_envoy().await;
        let honest: Vec<&ConnectedProxy> = self.proxies.iter().filter(|proxy| proxy.is_honest()).collect();
        let mut late = Vec::new();
        for ((kind, service), endpoints) in &self.inputs {
            let cluster = kind.cluster(*service);
            let without = honest.iter().filter(|proxy| proxy.proxy.endpoints(&cluster) != *endpoints);
            late.extend(without.map(|proxy| format!("{cluster} of {}", proxy.proxy.name())));
            let of_envoy = envoy.as_ref().map(|dump| dump.endpoints.get(&cluster).cloned().unwrap_or_default());
            if self.envoy.is_some() && of_envoy.as_ref() != Some(endpoints) {
                late.push(format!("{cluster} of {ENVOY}"));
            }
        }
        late
    }

    /// Records what replicas report about proxies, and what the Envoy uses.
    pub(super) async fn observe(&self) {
        let names: BTreeMap<String, ProxyName> = self
            .proxies
            .iter()
            .map(|proxy| (real::page_name(&proxy.role.options(0).node.id).to_owned(), proxy.proxy.name().clone()))
            .collect();
        for replica in &self.replicas {
            let Some(page) = replica.sync_page().await else { continue };
            for (id, nonces) in real::reported(&page) {
                let Some(proxy) = names.get(&id) else { continue };
                for (url, sent, acked) in nonces {
                    let Some(kind) = ResourceKind::of(&url) else { continue };
                    self.history.record(Event::Reported { proxy: proxy.clone(), kind, sent, acked });
                }
            }
        }
        self.dump_envoy().await;
    }

    /// Records what the Envoy uses and returns it; nothing if there is no Envoy or it does not answer.
    async fn dump_envoy(&self) -> Option<EnvoyDump> {
        self.envoy.as_ref()?.dumps.dump().await
    }

    /// Records for each honest proxy what a fresh server would send to it.
    pub(super) async fn expect(&mut self) {
        let mut fresh = self.start_replica("fresh").await;
        fresh.ready().await;
        let target = ProxyTarget { address: fresh.grpc, replica: 0 };
        let scratch = History::default();
        let honest: Vec<&ConnectedProxy> = self.proxies.iter().filter(|proxy| proxy.is_honest()).collect();
        let twins: Vec<(Arc<str>, RecordedProxy, watch::Sender<ProxyTarget>)> = honest
            .iter()
            .map(|proxy| {
                let (keep, targets) = watch::channel(target);
                let twin = RecordedProxy::start(&scratch, proxy.role.options(0), targets);
                (proxy.proxy.name().clone(), twin, keep)
            })
            .collect();
        // Either side may still be on its way; what differs for long is recorded as it is.
        let begun = self.history.now();
        let equal = |proxy: &ConnectedProxy| {
            let twin = twins.iter().find(|(name, ..)| name == proxy.proxy.name());
            twin.is_some_and(|(_, twin, _)| !twin.held().is_empty() && twin.held() == proxy.proxy.held())
        };
        while !honest.iter().all(|proxy| equal(proxy)) && self.history.now() - begun < wait::PATIENCE {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for (name, twin, _) in &twins {
            self.history.record(Event::Expected { proxy: name.clone(), held: twin.held() });
        }
    }
}

/// Sidecars of both transports, two that reject now and then, and gateways with and without the right to the certificate.
fn roles() -> Vec<ProxyRole> {
    let role = |number, kind, transport, rejects| ProxyRole { number, kind, transport, rejects };
    use XdsTransport::{Delta, Sotw};
    vec![
        role(0, "sidecar", Delta, 0),
        role(1, "sidecar", Sotw, 0),
        role(2, "sidecar", Sotw, 0),
        role(3, "sidecar", Delta, 0),
        role(4, "sidecar", Delta, 5),
        role(5, "sidecar", Sotw, 5),
        role(6, "router", Delta, 0),
        role(7, "router", Sotw, 0),
    ]
}
