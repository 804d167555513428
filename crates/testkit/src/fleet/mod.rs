//! A fleet of simulated proxies on one control plane. Each subscribes as an Envoy does and acknowledges everything.
//! Measures what the fleet receives, and when.

pub mod mesh;
pub mod proxy;
pub mod staleness;
mod throttled;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::TypeUrl;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::process::Process;
use proxy::{Pace, Profile, SimulatedProxy};
use staleness::Staleness;

/// Proxies that connect at the same time.
const AT_ONCE: usize = 50;
/// Time limit of one change.
const PATIENCE: Duration = Duration::from_secs(60);
/// A server that used less CPU time than this in a second is idle.
const IDLE: Duration = Duration::from_millis(30);

/// Composition of a fleet: how many proxies of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct FleetOptions {
    /// Sidecars of different workloads.
    pub workloads: usize,
    /// Sidecars that are replicas of one workload.
    pub replicas: usize,
    pub gateways: usize,
    /// Sidecars that read a kilobyte a second.
    pub slow: usize,
}

impl FleetOptions {
    fn profiles(&self) -> Vec<Profile> {
        let own = (0..self.workloads).map(|number| Profile::sidecar(number, format!("c{number}")));
        let replicas = (self.workloads..).take(self.replicas).map(|number| Profile::sidecar(number, "same".to_owned()));
        let gateways = (self.workloads + self.replicas..).take(self.gateways).map(Profile::gateway);
        let first_slow = self.workloads + self.replicas + self.gateways;
        let slow = (first_slow..)
            .take(self.slow)
            .map(|number| Profile { pace: Pace::Slow, ..Profile::sidecar(number, format!("c{number}")) });
        own.chain(replicas).chain(gateways).chain(slow).collect()
    }
}

/// Connected proxies.
pub struct Fleet {
    /// Those that read at full speed.
    proxies: Vec<SimulatedProxy>,
    /// Those that do not; they are never waited for.
    slow: Vec<SimulatedProxy>,
    staleness: Arc<Staleness>,
}

impl Fleet {
    /// Connects all proxies and waits until those that read at full speed have clusters, endpoints, listeners and routes.
    pub async fn connect(server: SocketAddr, options: FleetOptions) -> Fleet {
        let staleness = Arc::new(Staleness::default());
        let start = |profile: Profile| SimulatedProxy::new(server, profile, staleness.clone());
        let (slow, proxies) = options.profiles().into_iter().partition(|profile| profile.pace == Pace::Slow);
        let [slow, proxies]: [Vec<Profile>; 2] = [slow, proxies];
        let mut fleet = Fleet {
            slow: slow.into_iter().map(start).collect(),
            proxies: proxies.into_iter().map(start).collect(),
            staleness: staleness.clone(),
        };
        fleet.slow.iter_mut().for_each(SimulatedProxy::connect);
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
        loop {
            let now = (self.bytes(), server.cpu().unwrap_or_default());
            if now.0 == bytes && now.1 - cpu < IDLE {
                return;
            }
            (bytes, cpu) = now;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}
