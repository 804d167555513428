//! A fleet of simulated proxies on one control plane. Each subscribes as an Envoy does and acknowledges everything.
//! Measures what the fleet receives, and when.

pub(crate) mod decoded;
pub mod mesh;
mod node;
mod proxy;
mod simulated;
pub mod staleness;
mod stream;
mod throttled;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::envoy::XdsTransport;
use crate::process::Process;
use crate::wait;
use proxy::{Pace, Profile};
use simulated::SimulatedProxy;
use staleness::Staleness;

/// Proxies that connect at the same time.
const AT_ONCE: usize = 50;
/// Time limit of one change.
const PATIENCE: Duration = Duration::from_secs(60);
/// A server that used less CPU time than this in a second is idle.
const IDLE: Duration = Duration::from_millis(30);
/// The same for each slow reader, whose connection is never idle.
const IDLE_WITH_SLOW: Duration = Duration::from_millis(5);

/// Composition of a fleet: how many proxies of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct FleetOptions {
    /// Sidecars of different workloads.
    pub workloads: usize,
    /// Sidecars that are replicas of one workload.
    pub replicas: usize,
    pub gateways: usize,
    /// Sidecars of different workloads that use the state-of-the-world protocol.
    pub sotw: usize,
    /// Sidecars of different workloads that Sidecar resources select: see `SimulatedMesh::limit_scopes`.
    pub scoped: usize,
    /// Sidecars that read slowly, and connect again whenever their stream ends.
    pub slow: usize,
    /// How many bytes a second each of them reads.
    pub slow_rate: u32,
}

impl FleetOptions {
    fn profiles(&self) -> Vec<Profile> {
        type Make = fn(usize) -> Profile;
        let kinds: [(usize, Make); 5] = [
            (self.workloads, |number| Profile::sidecar(number, &format!("c{number}"))),
            (self.replicas, |number| Profile::sidecar(number, "same")),
            (self.gateways, Profile::gateway),
            (self.sotw, |number| Profile {
                transport: XdsTransport::Sotw,
                ..Profile::sidecar(number, &format!("c{number}"))
            }),
            (self.scoped, |number| Profile::scoped(number, &format!("c{number}"))),
        ];
        let makes = kinds.into_iter().flat_map(|(count, make)| (0..count).map(move |_| make));
        let mut profiles: Vec<Profile> = makes.enumerate().map(|(number, make)| make(number)).collect();
        let pace = Pace::Slow { bytes_a_second: self.slow_rate.max(1) };
        let slow = (profiles.len()..).take(self.slow);
        let slow = slow.map(|number| Profile { pace, ..Profile::sidecar(number, &format!("c{number}")) });
        profiles.extend(slow);
        profiles
    }
}

/// The node of a sidecar or gateway with its own address, and this label `app`.
pub(crate) fn node(kind: &str, number: usize, app: &str) -> Node {
    node::labelled(kind, number, app, &[])
}

/// Connected proxies.
pub struct Fleet {
    /// Those that read at full speed.
    proxies: Vec<SimulatedProxy>,
    /// Those that do not; only their first connection is waited for.
    slow: Vec<SimulatedProxy>,
    staleness: Arc<Staleness>,
}

/// The slow readers of a fleet at some time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlowReaders {
    /// How many have an open stream.
    pub connected: usize,
    /// Streams that ended so far.
    pub ended: u64,
    /// Bytes that each has read so far.
    pub read: Vec<u64>,
}

impl Fleet {
    /// Connects all proxies and waits until those that read at full speed have clusters, endpoints, listeners and routes.
    pub async fn connect(server: SocketAddr, options: FleetOptions) -> Fleet {
        let staleness = Arc::new(Staleness::default());
        let start = |profile: Profile| SimulatedProxy::new(server, profile, staleness.clone());
        let (slow, proxies) = options.profiles().into_iter().partition(|profile| profile.pace != Pace::Full);
        let [slow, proxies]: [Vec<Profile>; 2] = [slow, proxies];
        let mut fleet = Fleet {
            slow: slow.into_iter().map(start).collect(),
            proxies: proxies.into_iter().map(start).collect(),
            staleness: staleness.clone(),
        };
        fleet.slow.iter_mut().for_each(SimulatedProxy::connect);
        wait::until("slow readers with open streams", async || {
            let readers = fleet.slow_readers();
            let begun = |(slow, read): (&SimulatedProxy, &u64)| *read > 0 || slow.stream_state().1 > 0;
            if fleet.slow.iter().zip(&readers.read).all(begun) { Ok(()) } else { Err(format!("{readers:?}")) }
        })
        .await;
        fleet.connect_all().await;
        fleet
    }

    /// Cuts all streams and connects again with the versions that the proxies hold.
    pub async fn reconnect(&mut self) {
        self.proxies.iter_mut().for_each(SimulatedProxy::disconnect);
        self.connect_all().await;
    }

    async fn connect_all(&mut self) {
        let gate = Arc::new(Semaphore::new(AT_ONCE));
        let mut connecting = JoinSet::new();
        for proxy in &mut self.proxies {
            let permit = gate.clone().acquire_owned().await;
            proxy.connect();
            let synced = proxy.synced();
            connecting.spawn(async move {
                synced.await;
                drop(permit);
            });
        }
        while let Some(connected) = connecting.join_next().await {
            connected.unwrap_or_else(|e| panic!("could not connect a proxy: {e}"));
        }
    }

    pub fn slow_readers(&self) -> SlowReaders {
        let mut readers = SlowReaders::default();
        for (is_open, ended, read) in self.slow.iter().map(SimulatedProxy::stream_state) {
            readers.connected += usize::from(is_open);
            readers.ended += ended;
            readers.read.push(read);
        }
        readers
    }

    /// Number of proxies, except slow ones.
    pub fn len(&self) -> usize {
        self.proxies.len()
    }

    pub fn is_empty(&self) -> bool {
        self.proxies.is_empty()
    }

    /// Times of changes and their arrivals.
    pub fn staleness(&self) -> &Arc<Staleness> {
        &self.staleness
    }

    /// Bytes that proxies have received, except slow ones.
    pub fn bytes(&self) -> u64 {
        self.proxies.iter().map(SimulatedProxy::bytes).sum()
    }

    /// For each proxy the time from `begun` until it got resources of a type; panics if one never does.
    pub async fn arrivals(&self, kind: &TypeUrl, begun: Instant) -> Vec<Duration> {
        let mut arrivals = Vec::new();
        for proxy in &self.proxies {
            let arrived = tokio::time::timeout(PATIENCE, proxy.received(kind, begun)).await;
            arrivals.push(arrived.unwrap_or_else(|_| panic!("a proxy got no {kind} within {PATIENCE:?}")) - begun);
        }
        arrivals
    }

    /// Waits until the server has sent nothing and used no CPU time for a second.
    pub async fn settle(&self, server: &Process) {
        let (mut bytes, mut cpu) = (u64::MAX, Duration::ZERO);
        let idle = IDLE + IDLE_WITH_SLOW * self.slow.len() as u32;
        loop {
            let now = (self.bytes(), server.cpu().unwrap_or_default());
            if now.0 == bytes && now.1 - cpu < idle {
                return;
            }
            (bytes, cpu) = now;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}
