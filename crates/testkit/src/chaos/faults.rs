//! The faults that the nemesis injects: what each touches, how it begins and how it ends. The numbers are those of
//! docs/robustness.md.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;

use super::sources::{SERVICES, SourceKind};
use super::world::{REPLICAS, World};
use super::{clients, configs};
use crate::fake_api;
use crate::fleet::mesh::metadata;
use crate::forwarder::LinkFault;
use crate::process::signal;
use crate::promises::{FaultScope, MeshPart};

/// By how much a slow network delays each piece of data in each direction.
const LATER: Duration = Duration::from_millis(300);
/// By how much a slow disk delays each access to a file.
const DISK_DELAY: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    ApiServerDown,
    StorePaused,
    WatchesExpire,
    ApiServerErrors,
    ApiServerSlow,
    EndpointStorm,
    Noise,
    DefinitionDeleted,
    ConsulKilled,
    ConsulUnreachable,
    ConsulSlow,
    CopilotStalls,
    CopilotSlow,
    BrokenFiles,
    FolderGone,
    ClusterUnreachable,
    SourceCut,
    DuplicateHosts,
    BrokenRoutes,
    BadPatches,
    Rejections,
    RegexBombs,
    YamlBombs,
    Flapping,
    SlowProxy,
    DelayedProxy,
    StoppedEnvoy,
    SilentProxy,
    OneWayProxy,
    ResetProxy,
    ReplicaKilled,
    RollingRestart,
    OddClients,
    ShortStreams,
    Oversize,
    ReplicaPaused,
    ClockJump,
    FullDisk,
    SlowDisk,
}

/// Faults of one group exclude each other in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FaultGroup {
    Kubernetes,
    Consul,
    Copilot,
    Files,
    Config,
    Load,
    Proxy,
    Envoy,
    Replica,
    Clients,
}

/// A fault with the part that the seed chose for it.
#[derive(Clone, Debug)]
pub(super) struct Injection {
    pub(super) fault: Fault,
    pub(super) name: Arc<str>,
    pub(super) scope: FaultScope,
    /// Number of the replica or proxy.
    target: usize,
    source: SourceKind,
}

impl Fault {
    pub const ALL: [Fault; 39] = [
        Fault::ApiServerDown,
        Fault::StorePaused,
        Fault::WatchesExpire,
        Fault::ApiServerErrors,
        Fault::ApiServerSlow,
        Fault::EndpointStorm,
        Fault::Noise,
        Fault::DefinitionDeleted,
        Fault::ConsulKilled,
        Fault::ConsulUnreachable,
        Fault::ConsulSlow,
        Fault::CopilotStalls,
        Fault::CopilotSlow,
        Fault::BrokenFiles,
        Fault::FolderGone,
        Fault::ClusterUnreachable,
        Fault::SourceCut,
        Fault::DuplicateHosts,
        Fault::BrokenRoutes,
        Fault::BadPatches,
        Fault::Rejections,
        Fault::RegexBombs,
        Fault::YamlBombs,
        Fault::Flapping,
        Fault::SlowProxy,
        Fault::DelayedProxy,
        Fault::StoppedEnvoy,
        Fault::SilentProxy,
        Fault::OneWayProxy,
        Fault::ResetProxy,
        Fault::ReplicaKilled,
        Fault::RollingRestart,
        Fault::OddClients,
        Fault::ShortStreams,
        Fault::Oversize,
        Fault::ReplicaPaused,
        Fault::ClockJump,
        Fault::FullDisk,
        Fault::SlowDisk,
    ];

    /// Its number in the catalogue, and what happens.
    pub fn describe(self) -> (&'static str, &'static str) {
        match self {
            Fault::ApiServerDown => ("A1", "API server killed, objects change meanwhile"),
            Fault::StorePaused => ("A1", "etcd of the API server paused"),
            Fault::WatchesExpire => ("A2", "history compacted, watches cut and expired"),
            Fault::ApiServerErrors => ("A3", "API server answers 429, 500 and 503"),
            Fault::ApiServerSlow => ("A3", "bytes of the API server arrive 300 ms later"),
            Fault::EndpointStorm => ("A5", "hundreds of endpoint changes"),
            Fault::Noise => ("A6", "files and annotations change without a meaning"),
            Fault::DefinitionDeleted => ("A7", "definition of a kind deleted"),
            Fault::ConsulKilled => ("A8", "Consul killed"),
            Fault::ConsulUnreachable => ("A9", "an instance fails, then Consul is silent"),
            Fault::ConsulSlow => ("A9", "bytes of Consul arrive 300 ms later"),
            Fault::CopilotStalls => ("A11", "Copilot never answers"),
            Fault::CopilotSlow => ("A11", "bytes of Copilot arrive 300 ms later"),
            Fault::BrokenFiles => ("A12", "half-written and invalid files"),
            Fault::FolderGone => ("A12", "folder of files replaced by nothing"),
            Fault::ClusterUnreachable => ("A14", "a further cluster that cannot be reached"),
            Fault::SourceCut => ("A14", "network cut between a replica and a source"),
            Fault::DuplicateHosts => ("B1", "duplicate hosts"),
            Fault::BrokenRoutes => ("B2", "routes that lead nowhere"),
            Fault::BadPatches => ("B3", "EnvoyFilters that cannot be applied"),
            Fault::Rejections => ("B4", "a proxy rejects everything"),
            Fault::RegexBombs => ("B6", "expensive and invalid expressions"),
            Fault::YamlBombs => ("B7", "bombs and binary files"),
            Fault::Flapping => ("B8", "a service is added and deleted quickly"),
            Fault::SlowProxy => ("C1", "a proxy reads 8 KB a second"),
            Fault::DelayedProxy => ("C1", "bytes between proxy and replica arrive 300 ms later"),
            Fault::StoppedEnvoy => ("C2", "Envoy stopped"),
            Fault::SilentProxy => ("C3", "no byte passes between proxy and replica"),
            Fault::OneWayProxy => ("C3", "no byte passes in one direction"),
            Fault::ResetProxy => ("C4", "connection reset in the middle of responses"),
            Fault::ReplicaKilled => ("C5, D7", "replica killed and started, several times"),
            Fault::RollingRestart => ("C6", "all replicas restarted, one after the other"),
            Fault::OddClients => ("C7", "clients that break the protocol"),
            Fault::ShortStreams => ("C8", "short streams, a node that changes"),
            Fault::Oversize => ("C9", "oversize requests"),
            Fault::ReplicaPaused => ("D1", "replica suspended"),
            Fault::ClockJump => ("D1", "wall clock jumps an hour ahead and back"),
            Fault::FullDisk => ("D4", "the disk of the state folder is full"),
            Fault::SlowDisk => ("D4", "each access to a file takes 200 ms longer"),
        }
    }

    pub(super) fn group(self) -> FaultGroup {
        match self {
            Fault::ApiServerDown
            | Fault::StorePaused
            | Fault::WatchesExpire
            | Fault::ApiServerErrors
            | Fault::ApiServerSlow
            | Fault::DefinitionDeleted
            | Fault::ClusterUnreachable => FaultGroup::Kubernetes,
            Fault::ConsulKilled | Fault::ConsulUnreachable | Fault::ConsulSlow | Fault::SourceCut => FaultGroup::Consul,
            Fault::CopilotStalls | Fault::CopilotSlow => FaultGroup::Copilot,
            Fault::BrokenFiles | Fault::FolderGone | Fault::Noise => FaultGroup::Files,
            Fault::DuplicateHosts | Fault::BrokenRoutes | Fault::BadPatches | Fault::RegexBombs | Fault::YamlBombs => {
                FaultGroup::Config
            }
            Fault::EndpointStorm | Fault::Flapping => FaultGroup::Load,
            Fault::SlowProxy
            | Fault::DelayedProxy
            | Fault::SilentProxy
            | Fault::OneWayProxy
            | Fault::ResetProxy
            | Fault::Rejections => FaultGroup::Proxy,
            Fault::StoppedEnvoy => FaultGroup::Envoy,
            Fault::ReplicaKilled
            | Fault::RollingRestart
            | Fault::ReplicaPaused
            | Fault::ClockJump
            | Fault::FullDisk
            | Fault::SlowDisk => FaultGroup::Replica,
            Fault::OddClients | Fault::ShortStreams | Fault::Oversize => FaultGroup::Clients,
        }
    }

    /// Whether it can be injected on this machine.
    pub(super) fn is_possible(self, world: &World) -> bool {
        match self.group() {
            FaultGroup::Kubernetes => world.sources.kubernetes.is_some(),
            FaultGroup::Consul => world.sources.consul.is_some(),
            FaultGroup::Envoy => world.envoy.is_some(),
            _ => self != Fault::FullDisk || world.small_disk.is_some(),
        }
    }

    /// Chooses the parts that the fault touches.
    pub(super) fn plan(self, world: &mut World) -> Injection {
        let replica = world.random.usize(..REPLICAS);
        let honest: Vec<usize> = (0..world.proxies.len()).filter(|number| world.proxies[*number].is_honest()).collect();
        let proxy = world.random.choice(honest).unwrap_or_default();
        let linked = world.sources.kinds().into_iter().filter(|kind| *kind != SourceKind::Files);
        let source = world.random.choice(linked.collect::<Vec<_>>()).unwrap_or(SourceKind::Copilot);
        let of_source = |kind: SourceKind| MeshPart::Source(kind.name().into());
        let (target, scope) = match self.group() {
            FaultGroup::Kubernetes if matches!(self, Fault::DefinitionDeleted | Fault::ClusterUnreachable) => {
                (0, FaultScope::Nothing)
            }
            FaultGroup::Kubernetes => (replica, FaultScope::of([of_source(SourceKind::Kubernetes)])),
            FaultGroup::Consul if self == Fault::SourceCut => {
                (replica, FaultScope::Between(of_source(source), MeshPart::Replica(replica)))
            }
            FaultGroup::Consul => (0, FaultScope::of([of_source(SourceKind::Consul)])),
            FaultGroup::Copilot => (0, FaultScope::of([of_source(SourceKind::Copilot)])),
            FaultGroup::Files if self == Fault::FolderGone => (0, FaultScope::of([of_source(SourceKind::Files)])),
            FaultGroup::Proxy => (proxy, FaultScope::of([MeshPart::Proxy(world.proxies[proxy].proxy.name().clone())])),
            FaultGroup::Envoy => (0, FaultScope::of([MeshPart::Proxy("envoy".into())])),
            FaultGroup::Replica if self == Fault::RollingRestart => {
                (0, FaultScope::of((0..REPLICAS).map(MeshPart::Replica)))
            }
            FaultGroup::Replica if matches!(self, Fault::FullDisk | Fault::SlowDisk) => (0, FaultScope::Nothing),
            FaultGroup::Replica => (replica, FaultScope::of([MeshPart::Replica(replica)])),
            FaultGroup::Files | FaultGroup::Config | FaultGroup::Load | FaultGroup::Clients => {
                (replica, FaultScope::Nothing)
            }
        };
        let (id, what) = self.describe();
        Injection { fault: self, name: format!("{id} {what}").into(), scope, target, source }
    }
}

impl Injection {
    /// Injects the fault.
    pub(super) async fn begin(&self, world: &mut World) {
        match self.fault.group() {
            FaultGroup::Kubernetes => self.begin_kubernetes(world).await,
            FaultGroup::Consul | FaultGroup::Copilot => self.begin_registry(world).await,
            FaultGroup::Files | FaultGroup::Config => self.begin_files(world).await,
            FaultGroup::Load => self.load(world).await,
            FaultGroup::Proxy | FaultGroup::Envoy => self.begin_proxy(world),
            FaultGroup::Replica => self.begin_replica(world).await,
            FaultGroup::Clients => {
                let server = world.replicas[self.target].grpc;
                match self.fault {
                    Fault::OddClients => clients::odd(server, &mut world.random.fork()).await,
                    Fault::ShortStreams => clients::short_streams(server).await,
                    _ => clients::oversize(server).await,
                }
            }
        }
    }

    async fn begin_kubernetes(&self, world: &mut World) {
        let Some(kubernetes) = &mut world.sources.kubernetes else { return };
        match self.fault {
            Fault::ApiServerDown => kubernetes.server.stop(),
            Fault::StorePaused => {
                kubernetes.server.pause_store();
                world.frozen.insert(SourceKind::Kubernetes);
            }
            Fault::WatchesExpire => {
                kubernetes.server.compact().await;
                kubernetes.faulty.refuse_to_resume();
                kubernetes.faulty.cut_watches();
            }
            Fault::ApiServerErrors => {
                kubernetes.faulty.refuse(2, 3, &[429, 500, 503]);
                kubernetes.faulty.cut_watches();
            }
            Fault::ApiServerSlow => {
                for link in world.replicas.iter().filter_map(|replica| replica.kubernetes.as_ref()) {
                    link.disturb(LinkFault::Delay(LATER));
                }
            }
            Fault::DefinitionDeleted => {
                let path =
                    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/virtualservices.networking.istio.io";
                let _ = kubernetes.server.delete(path).await;
            }
            _ => {
                let nowhere = fake_api::text("http://127.0.0.1:9", &json!({"token": "none"}));
                let mut secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
                    "metadata": metadata(Some("istio-system"), "remote"),
                    "data": {"remote": BASE64_STANDARD.encode(nowhere)}});
                secret["metadata"]["labels"] = json!({"istio/multiCluster": "true"});
                kubernetes.server.put(&[("secrets/istio-system/remote".to_owned(), secret)]).await;
            }
        }
    }

    async fn begin_registry(&self, world: &mut World) {
        match self.fault {
            Fault::ConsulKilled => {
                world.frozen.insert(SourceKind::Consul);
                // A Consul that replays its log shows older states for a moment. Replicas would follow it.
                world.replicas.iter().filter_map(|replica| replica.consul.as_ref()).for_each(|link| link.cut());
                world.sources.consul.iter_mut().for_each(crate::consul::Consul::kill);
            }
            Fault::ConsulUnreachable => {
                self.fail_one_instance(world).await;
                for link in world.replicas.iter().filter_map(|replica| replica.consul.as_ref()) {
                    link.disturb(LinkFault::Silent);
                }
            }
            Fault::ConsulSlow => {
                let links = world.replicas.iter().filter_map(|replica| replica.consul.as_ref());
                links.for_each(|link| link.disturb(LinkFault::Delay(LATER)));
            }
            Fault::CopilotSlow => {
                world.replicas.iter().for_each(|replica| replica.copilot.disturb(LinkFault::Delay(LATER)));
            }
            Fault::SourceCut => {
                let link = world.replicas[self.target].link_to(self.source);
                link.iter().for_each(|link| link.cut());
            }
            _ => world.sources.copilot.edit(|state| state.stalls = true),
        }
    }

    /// A failing instance is a change of its source: its endpoint gets no requests any more.
    async fn fail_one_instance(&self, world: &mut World) {
        let mut endpoints = world.endpoints(SourceKind::Consul, 0);
        let Some(address) = endpoints.pop_first() else { return };
        let begun = world.history.now();
        world.sources.fail_instance(0, &address).await;
        world.recorded(SourceKind::Consul, 0, endpoints, begun);
    }

    async fn begin_files(&self, world: &mut World) {
        let write = |name: &str, content: &[u8]| {
            let written = fs::write(world.sources.config().join(name), content);
            written.unwrap_or_else(|e| panic!("could not write {name}: {e}"));
        };
        match self.fault {
            Fault::BrokenFiles => {
                write("broken.yaml", b"kind: ServiceEntry\nmetadata: {name: [unclosed\n");
                // The first half of a file that exists, as an editor without renaming leaves it for a moment.
                let path = world.sources.config().join("f0.yaml");
                let text = fs::read(&path).unwrap_or_default();
                if !text.is_empty() {
                    write("f0.yaml", &text[..text.len() / 2]);
                    world.half_written = Some(text);
                }
            }
            Fault::FolderGone => {
                world.frozen.insert(SourceKind::Files);
                let moved = fs::rename(world.sources.config(), world.sources.folder().join("away"));
                moved.unwrap_or_else(|e| panic!("could not move the folder: {e}"));
            }
            Fault::Noise => {
                for round in 0..20 {
                    write("noise.yaml", format!("# comment {round}\n").as_bytes());
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            Fault::DuplicateHosts => write("evil-hosts.yaml", configs::duplicates().as_bytes()),
            Fault::BrokenRoutes => write("evil-routes.yaml", configs::broken_routes().as_bytes()),
            Fault::BadPatches => write("evil-patches.yaml", configs::bad_patches().as_bytes()),
            Fault::RegexBombs => write("evil-regex.yaml", configs::regex_bombs().as_bytes()),
            _ => configs::yaml_bombs().iter().for_each(|(name, content)| write(name, content)),
        }
    }

    async fn load(&self, world: &mut World) {
        let kinds: Vec<SourceKind> =
            world.sources.kinds().into_iter().filter(|kind| !world.frozen.contains(kind)).collect();
        let quick = kinds.into_iter().filter(|kind| *kind != SourceKind::Consul).collect::<Vec<_>>();
        for round in 0..60 {
            let Some(kind) = world.random.choice(quick.iter().copied()) else { return };
            let service = world.random.usize(..SERVICES);
            let is_removal = self.fault == Fault::Flapping && round % 2 == 0 && kind != SourceKind::Copilot;
            let endpoints = if is_removal { BTreeSet::new() } else { world.fresh_endpoints(2) };
            world.set(kind, service, endpoints).await;
        }
    }

    fn begin_proxy(&self, world: &mut World) {
        let size = world.random.usize(..20_000);
        let proxy = &world.proxies[self.target];
        match self.fault {
            Fault::SlowProxy => proxy.link.disturb(LinkFault::Slow(8_000)),
            Fault::DelayedProxy => proxy.link.disturb(LinkFault::Delay(LATER)),
            Fault::SilentProxy => proxy.link.disturb(LinkFault::Silent),
            Fault::OneWayProxy if size.is_multiple_of(2) => proxy.link.disturb(LinkFault::SilentDown),
            Fault::OneWayProxy => proxy.link.disturb(LinkFault::SilentUp),
            Fault::ResetProxy => proxy.link.disturb(LinkFault::Reset(size)),
            Fault::Rejections => proxy.proxy.reject(100),
            _ => world.envoy.iter_mut().for_each(|watched| signal(watched.envoy.process().id(), "STOP")),
        }
    }

    async fn begin_replica(&self, world: &mut World) {
        match self.fault {
            Fault::ReplicaKilled => {
                for _ in 0..3 {
                    world.replicas[self.target].kill();
                    world.change().await;
                    world.replicas[self.target].launch();
                    let pause = world.random.u64(..800);
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
            }
            Fault::RollingRestart => {
                for replica in 0..REPLICAS {
                    world.move_proxies(replica, (replica + 1) % REPLICAS);
                    world.change().await;
                    world.replicas[replica].kill();
                    world.replicas[replica].launch();
                    world.replicas[replica].ready().await;
                }
                world.spread_proxies();
            }
            Fault::ReplicaPaused => world.replicas[self.target].signal("STOP"),
            Fault::ClockJump => world.clock.set(if world.random.bool() { 3_600 } else { -3_600 }),
            Fault::SlowDisk => world.disk.delay(DISK_DELAY),
            _ => world.small_disk.iter().for_each(super::disk::SmallDisk::fill),
        }
    }

    /// Repairs what was broken; returns when the system can work again.
    pub(super) async fn end(&self, world: &mut World) {
        match self.fault.group() {
            FaultGroup::Kubernetes => self.end_kubernetes(world).await,
            FaultGroup::Consul | FaultGroup::Copilot => self.end_registry(world).await,
            FaultGroup::Files | FaultGroup::Config => self.end_files(world),
            FaultGroup::Proxy => {
                let proxy = &world.proxies[self.target];
                proxy.link.disturb(LinkFault::None);
                proxy.proxy.reject(0);
                if self.fault == Fault::Rejections {
                    // A rejected version is not offered again to the same stream.
                    world.reconnect(self.target);
                }
            }
            FaultGroup::Envoy => {
                world.envoy.iter_mut().for_each(|watched| signal(watched.envoy.process().id(), "CONT"))
            }
            FaultGroup::Replica => match self.fault {
                Fault::ReplicaPaused => world.replicas[self.target].signal("CONT"),
                Fault::ReplicaKilled => world.replicas[self.target].ready().await,
                Fault::ClockJump => world.clock.set(0),
                Fault::FullDisk => world.small_disk.iter().for_each(super::disk::SmallDisk::clear),
                Fault::SlowDisk => world.disk.delay(Duration::ZERO),
                _ => {}
            },
            FaultGroup::Load | FaultGroup::Clients => {}
        }
    }

    async fn end_kubernetes(&self, world: &mut World) {
        world.frozen.remove(&SourceKind::Kubernetes);
        world
            .replicas
            .iter()
            .filter_map(|replica| replica.kubernetes.as_ref())
            .for_each(|l| l.disturb(LinkFault::None));
        let Some(kubernetes) = &mut world.sources.kubernetes else { return };
        kubernetes.faulty.heal();
        match self.fault {
            Fault::ApiServerDown => kubernetes.server.resume().await,
            Fault::StorePaused => kubernetes.server.resume_store(),
            Fault::DefinitionDeleted => kubernetes.define().await,
            Fault::ClusterUnreachable => {
                let _ = kubernetes.server.delete("/api/v1/namespaces/istio-system/secrets/remote").await;
            }
            _ => {}
        }
    }

    async fn end_registry(&self, world: &mut World) {
        match self.fault {
            Fault::ConsulKilled => {
                if let Some(consul) = &mut world.sources.consul {
                    consul.restart().await;
                    consul.replayed().await;
                }
                world.replicas.iter().for_each(|replica| replica.link(&world.sources));
                world.frozen.remove(&SourceKind::Consul);
            }
            Fault::ConsulUnreachable | Fault::ConsulSlow => {
                let links = world.replicas.iter().filter_map(|replica| replica.consul.as_ref());
                links.for_each(|link| link.disturb(LinkFault::None));
            }
            Fault::CopilotSlow => {
                world.replicas.iter().for_each(|replica| replica.copilot.disturb(LinkFault::None));
            }
            Fault::SourceCut => world.replicas[self.target].link(&world.sources),
            _ => world.sources.copilot.edit(|state| state.stalls = false),
        }
    }

    fn end_files(&self, world: &mut World) {
        match self.fault {
            Fault::FolderGone => {
                let moved = fs::rename(world.sources.folder().join("away"), world.sources.config());
                moved.unwrap_or_else(|e| panic!("could not move the folder back: {e}"));
                world.frozen.remove(&SourceKind::Files);
            }
            Fault::BrokenFiles => world.complete_half_written(),
            _ => {}
        }
        let bombs = configs::yaml_bombs();
        let evil = [
            "broken.yaml",
            "noise.yaml",
            "evil-hosts.yaml",
            "evil-routes.yaml",
            "evil-patches.yaml",
            "evil-regex.yaml",
        ];
        evil.into_iter().chain(bombs.iter().map(|(name, _)| *name)).for_each(|name| world.sources.remove(name));
    }
}
