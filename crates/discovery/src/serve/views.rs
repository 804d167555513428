//! Classes of clients: replicas of one workload share one `RenderedView` per snapshot. Different workloads share the
//! layers that it is made of.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use api::TypeUrl;
use model::change::Batch;
use model::hashed::{Hashed, fingerprint};
use model::problem::{Problem, ProblemCode, Subject};
use model::proxy::{NO_CERTIFICATES, Proxy, ProxyKind};
use model::settings::Settings;
use model::snapshot::Snapshot;
use model::snapshot::endpoints::Endpoints;
use model::snapshot::objects::{Extensions, Objects, Sidecars};
use model::snapshot::services::Services;
use model::workload::Workload;
use parking_lot::Mutex;
use scope::View;
use scope::identity;
use scope::inbound::{self, ServiceTarget};
use tokio::sync::mpsc;

use crate::serve::class::ClassInputs;
use crate::serve::excess::{ClassExcess, Excesses};
use crate::serve::layers::Layers;
use crate::serve::pins::{Pins, pinned};
use crate::serve::rendered::RenderedView;
use crate::serve::renderings::Renderings;
use crate::serve::snapshot_writer::PublishedSnapshot;

/// Snapshots with pins that are cached. A client that rejects at will has any number of sets of pins.
const MOST_PINNED: usize = 32;

/// All classes of connected clients.
#[derive(Debug)]
pub struct Views {
    slots: Mutex<HashMap<ClassKey, Weak<ViewClass>>>,
    layers: Arc<Layers>,
    excesses: Arc<Excesses>,
    /// The newest snapshot as clients with these pins see it.
    pinned: Mutex<Vec<(u64, u128, Arc<Snapshot>)>>,
}

/// Fingerprints of a class, of its inbound services, and of its pins.
type ClassKey = (u128, u128, u128);

/// One class of clients and its current view. Dropped with its last client.
#[derive(Debug)]
pub struct ViewClass {
    proxy: Arc<Proxy>,
    excess: Arc<ClassExcess>,
    cut: Mutex<Option<Arc<RenderedView>>>,
}

impl Views {
    /// No classes yet. Problems with resources that exceed limits are sent to `changes`.
    pub fn new(changes: mpsc::Sender<Batch>) -> Views {
        Views {
            slots: Mutex::default(),
            layers: Arc::default(),
            excesses: Excesses::new(changes),
            pinned: Mutex::default(),
        }
    }

    /// The view of this proxy in this snapshot, given its previous placement. Clients of the class with the same pins
    /// share it.
    pub fn cut(
        &self,
        published: &Arc<PublishedSnapshot>,
        proxy: &Proxy,
        pins: &Pins,
        before: Option<&Placement>,
    ) -> (Placement, Arc<RenderedView>) {
        let pins_key = if pins.is_empty() { 0 } else { fingerprint(pins) };
        let world = if pins.is_empty() { published.snapshot.clone() } else { self.pinned(published, pins_key, pins) };
        let placement = match before.filter(|before| before.pins == pins_key && before.basis.holds_in(&world, proxy)) {
            Some(Placement { class, inbound, .. }) => {
                let basis = Basis::of(&world, proxy);
                Placement { class: class.clone(), inbound: inbound.clone(), pins: pins_key, basis }
            }
            None => self.placed(published, &world, proxy, pins_key),
        };
        let cut = placement.class.advance(published, &world, &placement, &self.layers);
        (placement, cut)
    }

    fn placed(&self, published: &PublishedSnapshot, world: &Snapshot, proxy: &Proxy, pins: u128) -> Placement {
        let basis = Basis::of(world, proxy);
        let proxy = identity::resolved(world, proxy);
        let inbound = Hashed::new(inbound::targets(world, &proxy));
        let class = class_inputs(published, world).class_of(&proxy, world);
        let class = self.slot((fingerprint(&class), inbound.fingerprint(), pins), class);
        Placement { class, inbound, pins, basis }
    }

    /// The view of a client in this snapshot, given its view before. `None` if the client has pins or another placement
    /// now, or if the view takes longer than microseconds to compute.
    pub fn cut_quickly(
        &self,
        published: &Arc<PublishedSnapshot>,
        proxy: &Proxy,
        placement: &mut Placement,
        before: &RenderedView,
    ) -> Option<Arc<RenderedView>> {
        let world = &published.snapshot;
        if placement.pins != 0 || !before.view.renews_quickly(world) {
            return None;
        }
        if !placement.basis.holds_in(world, proxy) {
            return None;
        }
        placement.basis.endpoints = world.endpoints.clone();
        Some(placement.class.advance(published, world, placement, &self.layers))
    }

    /// The view of this proxy with these pins, which no client shares.
    pub fn trial(&self, published: &PublishedSnapshot, proxy: &Proxy, pins: &Pins) -> RenderedView {
        let world = pinned(&published.snapshot, pins);
        let proxy = identity::resolved(&world, proxy);
        let inbound = inbound::targets(&world, &proxy);
        let class = Arc::new(ClassInputs::of(&world).class_of(&proxy, &world));
        RenderedView::alone(published.number, View::new(&world, &class, inbound), self.layers.renderings.clone())
    }

    fn pinned(&self, published: &PublishedSnapshot, key: u128, pins: &Pins) -> Arc<Snapshot> {
        let find = |made: &[(u64, u128, Arc<Snapshot>)]| {
            made.iter()
                .find(|(number, of, _)| (*number, *of) == (published.number, key))
                .map(|(_, _, world)| world.clone())
        };
        if let Some(world) = find(&self.pinned.lock()) {
            return world;
        }
        let world = Arc::new(pinned(&published.snapshot, pins));
        let mut made = self.pinned.lock();
        made.retain(|(number, _, _)| *number >= published.number);
        if made.len() >= MOST_PINNED {
            made.remove(0);
        }
        made.push((published.number, key, world.clone()));
        world
    }

    fn slot(&self, key: ClassKey, class: Proxy) -> Arc<ViewClass> {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(&key).and_then(Weak::upgrade) {
            return slot;
        }
        slots.retain(|_, slot| slot.strong_count() > 0);
        let excess = self.excesses.class();
        if class.flag(NO_CERTIFICATES) {
            excess.set(&TypeUrl::SECRET, "", &[no_certificates(&class.namespace)]);
        }
        let slot = ViewClass { proxy: Arc::new(class), excess, cut: Mutex::default() };
        let slot = Arc::new(slot);
        slots.insert(key, Arc::downgrade(&slot));
        slot
    }

    /// Drops what was computed for classes without clients, and for earlier snapshots.
    pub fn free_unused(&self, published: &PublishedSnapshot) {
        self.pinned.lock().retain(|(number, _, _)| *number >= published.number);
        self.layers.free_unused(&published.snapshot);
        let (before, now) = {
            let mut slots = self.slots.lock();
            let before = slots.len();
            slots.retain(|_, slot| slot.strong_count() > 0);
            (before, slots.len())
        };
        if now == 0 {
            self.layers.renderings.clear();
            self.layers.scopes.clear();
        } else if now < before {
            self.layers.renderings.sweep();
        }
    }

    pub(crate) fn layers(&self) -> &Layers {
        &self.layers
    }

    pub fn renderings(&self) -> &Renderings {
        &self.layers.renderings
    }

    /// Number of classes.
    pub fn len(&self) -> usize {
        self.slots.lock().values().filter(|slot| slot.strong_count() > 0).count()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What classes depend on in a world, which is that of the snapshot unless the client has pins.
fn class_inputs(published: &PublishedSnapshot, world: &Snapshot) -> ClassInputs {
    if std::ptr::eq(world, &*published.snapshot) { published.class_inputs() } else { ClassInputs::of(world) }
}

/// The problem of proxies whose agent has no certificates and cannot obtain any.
fn no_certificates(namespace: &str) -> Problem {
    let message = format!(
        "proxies of namespace {namespace} have neither certificate files nor a CA: their traffic is plain text, and where a \
         policy demands mutual TLS they get no listener and no cluster; mount certificates or give the agents a TLS port of \
         the control plane"
    );
    let about = Subject::Setting("certificates of proxies".into());
    Problem::warning(about, message).coded(ProblemCode::WithoutCertificates)
}

impl ViewClass {
    fn advance(
        &self,
        published: &Arc<PublishedSnapshot>,
        world: &Snapshot,
        placement: &Placement,
        layers: &Arc<Layers>,
    ) -> Arc<RenderedView> {
        let mut held = self.cut.lock();
        let inbound = || placement.inbound.clone();
        let next = match held.as_ref() {
            Some(cut) if cut.number >= published.number => return cut.clone(),
            Some(cut) => cut.next(published, cut.view.renewed(world, inbound(), &layers.scopes)),
            None => {
                let view = View::shared(world, &self.proxy, inbound(), &layers.scopes);
                RenderedView::first(layers.clone(), published.clone(), view, placement.pins, self.excess.clone())
            }
        };
        let next = Arc::new(next);
        *held = Some(next.clone());
        next
    }
}

/// The class of one client, and the inputs that decided it.
#[derive(Debug)]
pub struct Placement {
    class: Arc<ViewClass>,
    inbound: Hashed<Vec<ServiceTarget>>,
    pins: u128,
    basis: Basis,
}

/// Everything that the class of a client and its inbound services depend on.
#[derive(Debug)]
struct Basis {
    settings: Arc<Settings>,
    services: Arc<Services>,
    objects: Arc<Objects>,
    extensions: Arc<Extensions>,
    sidecars: Arc<Sidecars>,
    workload: Option<Arc<Workload>>,
    /// The fingerprint of endpoints at the proxy's addresses. Lists are hashed by address, so they are kept alive.
    at_addresses: u128,
    endpoints: Arc<Endpoints>,
}

impl Basis {
    fn of(world: &Snapshot, proxy: &Proxy) -> Basis {
        let Snapshot { settings, services, objects, extensions, sidecars, endpoints, .. } = world;
        Basis {
            settings: settings.clone(),
            services: services.clone(),
            objects: objects.clone(),
            extensions: extensions.clone(),
            sidecars: sidecars.clone(),
            workload: identity::workload(world, proxy).cloned(),
            at_addresses: endpoints_at(endpoints, proxy),
            endpoints: endpoints.clone(),
        }
    }

    /// Whether everything is the same in another snapshot.
    fn holds_in(&self, world: &Snapshot, proxy: &Proxy) -> bool {
        Arc::ptr_eq(&self.settings, &world.settings)
            && Arc::ptr_eq(&self.services, &world.services)
            && Arc::ptr_eq(&self.objects, &world.objects)
            && Arc::ptr_eq(&self.extensions, &world.extensions)
            && Arc::ptr_eq(&self.sidecars, &world.sidecars)
            && self.workload.as_ref().map(Arc::as_ptr) == identity::workload(world, proxy).map(Arc::as_ptr)
            && (Arc::ptr_eq(&self.endpoints, &world.endpoints)
                || self.at_addresses == endpoints_at(&world.endpoints, proxy))
    }
}

/// The fingerprint of endpoints at a proxy's addresses.
fn endpoints_at(endpoints: &Endpoints, proxy: &Proxy) -> u128 {
    let here = proxy.ips.iter().flat_map(|ip| endpoints.at(&ip.to_string()));
    let here: Vec<_> = here.map(|key| (key, endpoints.address_of(key))).collect();
    fingerprint(&here)
}

/// Whether proxies of this kind are served.
pub fn is_served(kind: ProxyKind) -> bool {
    matches!(kind, ProxyKind::Sidecar | ProxyKind::Router)
}
