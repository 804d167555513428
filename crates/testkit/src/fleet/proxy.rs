//! What a simulated proxy is and has: its profile, and what it has received. It keeps names and versions but no bodies.
//! `simulated` connects it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use parking_lot::Mutex;
use tokio::sync::watch;
use xds::client::{Held, HeldResource};

use super::decoded::change_of;
use super::node::{GATEWAY, SCOPED, labelled};
use super::staleness::Staleness;
use crate::envoy::XdsTransport;

const TYPE_COUNT: usize = 4;
/// The types that an Envoy asks for, in its order.
pub(super) const TYPES: [TypeUrl; TYPE_COUNT] =
    [TypeUrl::CLUSTER, TypeUrl::ENDPOINT, TypeUrl::LISTENER, TypeUrl::ROUTE];

/// How a proxy introduces itself, which protocol it speaks, and how fast it reads.
#[derive(Clone, Debug)]
pub(super) struct Profile {
    pub(super) node: Node,
    pub(super) transport: XdsTransport,
    pub(super) pace: Pace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    Full,
    /// The proxy connects again whenever its stream ends.
    Slow {
        bytes_a_second: u32,
    },
}

impl Profile {
    /// A sidecar with its own address, and this label `app`.
    pub(super) fn sidecar(number: usize, app: &str) -> Profile {
        Profile { node: labelled("sidecar", number, app, &[]), transport: XdsTransport::Delta, pace: Pace::Full }
    }

    pub(super) fn scoped(number: usize, app: &str) -> Profile {
        Profile { node: labelled("sidecar", number, app, &[SCOPED]), ..Profile::sidecar(number, app) }
    }

    pub(super) fn gateway(number: usize) -> Profile {
        Profile { node: labelled("router", number, GATEWAY, &[]), ..Profile::sidecar(number, GATEWAY) }
    }
}

/// A resource as a proxy gets it.
pub(super) struct Delivered {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) body: Vec<u8>,
}

/// A response of either transport.
pub(super) struct Delivery {
    pub(super) kind: TypeUrl,
    pub(super) resources: Vec<Delivered>,
    pub(super) removed: Vec<String>,
    pub(super) bytes: usize,
}

/// What a proxy has received so far, and the state of its stream.
pub(super) struct Received {
    pub(super) bytes: AtomicU64,
    held: Mutex<HeldVersions>,
    /// The last change of each service.
    changes: Mutex<HashMap<usize, u32>>,
    latest: watch::Sender<Latest>,
    staleness: Arc<Staleness>,
    pub(super) is_open: AtomicBool,
    /// Streams that ended.
    pub(super) ended: AtomicU64,
    /// Bytes that a slow proxy has read.
    pub(super) taken: Arc<AtomicU64>,
}

/// Names and versions by type.
type HeldVersions = HashMap<TypeUrl, BTreeMap<Arc<str>, Arc<str>>>;

/// When a proxy last received each type.
#[derive(Clone, Debug, Default)]
struct Latest {
    times: [Option<Instant>; TYPE_COUNT],
    is_synced: bool,
}

impl Received {
    pub(super) fn new(staleness: Arc<Staleness>) -> Received {
        let (bytes, held, changes, is_open, ended, taken) = Default::default();
        let latest = watch::Sender::default();
        Received { bytes, held, changes, latest, staleness, is_open, ended, taken }
    }

    /// Forgets all versions.
    pub(super) fn forget_held(&self) {
        self.held.lock().clear();
    }

    pub(super) fn note_disconnected(&self) {
        self.latest.send_modify(|latest| latest.is_synced = false);
    }

    /// Ends when the proxy has resources of all types.
    pub(super) fn synced(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut latest = self.latest.subscribe();
        async move {
            latest.wait_for(|latest| latest.is_synced).await.unwrap_or_else(|e| panic!("a proxy is gone: {e}"));
        }
    }

    /// The first time after `begun` at which the proxy received this type.
    pub(super) async fn first_after(&self, kind: &TypeUrl, begun: Instant) -> Instant {
        let at = TYPES.iter().position(|known| known == kind).unwrap_or_else(|| panic!("{kind} is not simulated"));
        let mut latest = self.latest.subscribe();
        let is_new = |latest: &Latest| latest.times[at].is_some_and(|time| time > begun);
        let latest = latest.wait_for(is_new).await.unwrap_or_else(|e| panic!("a proxy is gone: {e}"));
        latest.times[at].unwrap_or(begun)
    }

    /// The held versions, as a delta stream begins with them.
    pub(super) fn held(&self) -> Held {
        let held = self.held.lock();
        let of = |versions: &BTreeMap<Arc<str>, Arc<str>>| {
            let entry = |(name, version): (&Arc<str>, &Arc<str>)| {
                (name.to_string(), HeldResource { version: version.to_string(), resource: api::Any::default() })
            };
            versions.iter().map(entry).collect()
        };
        held.iter().map(|(kind, versions)| (kind.clone(), of(versions))).collect()
    }

    pub(super) fn note_synced(&self) {
        if !self.latest.borrow().is_synced {
            self.latest.send_modify(|latest| latest.is_synced = true);
        }
    }

    pub(super) fn note(&self, delivery: &Delivery) {
        let Delivery { kind, resources, removed, bytes } = delivery;
        self.bytes.fetch_add(*bytes as u64, Ordering::Relaxed);
        {
            let mut held = self.held.lock();
            let held = held.entry(kind.clone()).or_default();
            held.extend(resources.iter().map(|r| (interned(&r.name), interned(&r.version))));
            removed.iter().for_each(|name| drop(held.remove(&**name)));
        }
        if *kind == TypeUrl::ENDPOINT {
            let mut changes = self.changes.lock();
            for (service, change) in resources.iter().filter_map(|r| change_of(&r.name, &r.body)) {
                let before = changes.insert(service, change).unwrap_or_default();
                self.staleness.arrived(service, before, change);
            }
        }
        self.latest.send_modify(|latest| {
            if let Some(at) = TYPES.iter().position(|known| known == kind) {
                latest.times[at] = Some(Instant::now());
            }
        });
    }
}

/// One allocation for each text, shared by all proxies.
fn interned(text: &str) -> Arc<str> {
    static TEXTS: LazyLock<Mutex<HashSet<Arc<str>>>> = LazyLock::new(Mutex::default);
    let mut texts = TEXTS.lock();
    if let Some(known) = texts.get(text) {
        return known.clone();
    }
    let new: Arc<str> = text.into();
    texts.insert(new.clone());
    new
}
