//! The record of a run: events in the order in which they happened, with times. Recording never waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::content::{Marker, ResourceKind, ResponseContent};

pub type ProxyName = Arc<str>;

/// Addresses of a service's endpoints; empty also if the service does not exist.
pub type EndpointSet = BTreeSet<String>;

/// Names of resources with the hash of their content, by type.
pub type HeldHashes = BTreeMap<ResourceKind, BTreeMap<String, u64>>;

/// A part of the system that a fault may touch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MeshPart {
    /// A source, by the name used in inputs.
    Source(Arc<str>),
    /// A replica of the control plane, by number.
    Replica(usize),
    Proxy(ProxyName),
}

/// The parts that a fault touches; all others must not notice it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultScope {
    Parts(BTreeSet<MeshPart>),
    /// The connection between two parts.
    Between(MeshPart, MeshPart),
    /// Nothing is excused: no part may notice.
    Nothing,
}

impl FaultScope {
    pub fn of(parts: impl IntoIterator<Item = MeshPart>) -> FaultScope {
        FaultScope::Parts(parts.into_iter().collect())
    }

    pub(super) fn touches(&self, chain: &[MeshPart]) -> bool {
        match self {
            FaultScope::Parts(parts) => chain.iter().any(|part| parts.contains(part)),
            FaultScope::Between(one, other) => chain.contains(one) && chain.contains(other),
            FaultScope::Nothing => false,
        }
    }
}

#[derive(Clone, Debug)]
pub enum Event {
    /// A source now has these endpoints of a service. The change began at `begun`, and its end is the time of the event.
    Input {
        source: Arc<str>,
        service: Arc<str>,
        endpoints: EndpointSet,
        begun: Duration,
    },
    FaultBegun {
        fault: Arc<str>,
        scope: FaultScope,
    },
    FaultEnded {
        fault: Arc<str>,
    },
    Connected {
        proxy: ProxyName,
        replica: usize,
    },
    Disconnected {
        proxy: ProxyName,
    },
    Received {
        proxy: ProxyName,
        response: ResponseContent,
    },
    /// An acknowledgement (ACK) or rejection (NACK).
    Answered {
        proxy: ProxyName,
        kind: ResourceKind,
        nonce: String,
        accepted: bool,
    },
    /// The proxy no longer needs these resources, and forgets them.
    Dropped {
        proxy: ProxyName,
        kind: ResourceKind,
        names: Vec<String>,
    },
    /// What the server says about a proxy: nonces last sent and acknowledged.
    Reported {
        proxy: ProxyName,
        kind: ResourceKind,
        sent: String,
        acked: String,
    },
    /// The configuration that a real Envoy uses.
    Dumped {
        proxy: ProxyName,
        dump: EnvoyDump,
    },
    /// What a fresh server sends a proxy like this one, after the last input.
    Expected {
        proxy: ProxyName,
        held: HeldHashes,
    },
}

/// The parts of a config dump that promises are about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EnvoyDump {
    pub clusters: BTreeSet<String>,
    pub endpoints: BTreeMap<String, BTreeSet<String>>,
    /// Clusters that routes lead to.
    pub targets: BTreeSet<String>,
}

#[derive(Clone, Debug)]
pub struct TimedEvent {
    pub at: Duration,
    pub event: Event,
}

/// Records events of a run, with times of the runtime's clock. Clones share the record.
#[derive(Clone)]
pub struct History {
    start: Instant,
    events: Arc<Mutex<Vec<TimedEvent>>>,
    markers: Arc<Vec<Marker>>,
    keeps: bool,
}

impl Default for History {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl History {
    pub fn new(markers: Vec<Marker>) -> History {
        History { start: Instant::now(), events: Arc::default(), markers: Arc::new(markers), keeps: true }
    }

    /// A history that forgets everything at once, for runs of which only the load matters.
    pub fn discarding() -> History {
        History { keeps: false, ..History::default() }
    }

    /// Time since the start of the record.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub fn record(&self, event: Event) {
        if !self.keeps {
            return;
        }
        // The time is taken under the lock, so that the order of events is that of their times.
        let mut events = self.events.lock();
        events.push(TimedEvent { at: self.start.elapsed(), event });
    }

    /// All events so far.
    pub fn events(&self) -> Vec<TimedEvent> {
        self.events.lock().clone()
    }

    pub fn markers(&self) -> &[Marker] {
        &self.markers
    }

    /// Number of responses that proxies received, and of those they rejected.
    pub fn figures(&self) -> (usize, usize) {
        let events = self.events.lock();
        let received = events.iter().filter(|timed| matches!(timed.event, Event::Received { .. })).count();
        let rejected = events.iter().filter(|timed| matches!(timed.event, Event::Answered { accepted: false, .. }));
        (received, rejected.count())
    }
}
