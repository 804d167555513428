//! What each class of clients is served. Clients that scope cannot tell apart share one `RenderedView` per epoch:
//! their view and its rendered sets, made on first use and taken over where a change cannot have touched them.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use api::{Resource, TypeUrl};
use model::change::Batch;
use model::hashed::fingerprint;
use model::problem::Problem;
use model::proxy::{Proxy, ProxyKind};
use model::snapshot::{Delta, Snapshot};
use scope::View;
use scope::affected::{Affected, AffectedEndpoints, affected, is_endpoints_only};
use scope::identity;
use scope::inbound::{self, ServiceTarget};
use tokio::sync::mpsc;
use translate::client::{self, sidecar};
use translate::names::parse_outbound_cluster;
use translate::security::guards::{Guards, guards};
use translate::{patch, plan, render};
use xds::ResourceSet;

use crate::serve::bounded::Bounded;
use crate::serve::by_name::ByName;
use crate::serve::excess::{self, ClassExcess, Excesses};
use crate::serve::quarantine::{Pins, pinned};
use crate::serve::renderings::Renderings;
use crate::serve::snapshot_writer::PublishedSnapshot;
use crate::serve::tables;

/// Sets of pins of which the mesh is kept at hand. A client that refuses at will has any number of them.
const MOST_PINNED: usize = 32;

/// All classes of clients that are connected.
#[derive(Debug)]
pub struct Views {
    slots: Mutex<HashMap<ClassKey, Weak<ViewClass>>>,
    renderings: Arc<Renderings>,
    excesses: Arc<Excesses>,
    /// The newest epoch's mesh as clients with these pins see it.
    pinned: Mutex<Vec<(u64, u128, Arc<Snapshot>)>>,
}

/// Fingerprints of a class, of what its clients serve themselves, and of their pins.
type ClassKey = (u128, u128, u128);

/// One class of clients and what it is served now. Dropped with its last client.
#[derive(Debug)]
pub struct ViewClass {
    proxy: Arc<Proxy>,
    excess: Arc<ClassExcess>,
    cut: Mutex<Option<Arc<RenderedView>>>,
}

impl Views {
    /// No classes yet. What is left out of their configuration is sent along with other changes.
    pub fn new(changes: mpsc::Sender<Batch>) -> Views {
        Views {
            slots: Mutex::default(),
            renderings: Arc::default(),
            excesses: Excesses::new(changes),
            pinned: Mutex::default(),
        }
    }

    /// What this proxy is served in this epoch. The slot keeps it for others of its class with the same pins.
    pub fn cut(&self, epoch: &PublishedSnapshot, proxy: &Proxy, pins: &Pins) -> (Arc<ViewClass>, Arc<RenderedView>) {
        let pins_key = fingerprint(pins);
        let world = if pins.is_empty() { epoch.snapshot.clone() } else { self.pinned(epoch, pins_key, pins) };
        let proxy = identity::resolved(&world, proxy);
        let inbound = inbound::targets(&world, &proxy);
        let class = class_of(&proxy, epoch);
        let slot = self.slot((fingerprint(&class), fingerprint(&inbound), pins_key), class);
        let cut = slot.advance(epoch, &world, inbound, &self.renderings);
        (slot, cut)
    }

    /// What this proxy would be served with these pins; nobody shares it.
    pub fn trial(&self, epoch: &PublishedSnapshot, proxy: &Proxy, pins: &Pins) -> RenderedView {
        let world = pinned(&epoch.snapshot, pins);
        let proxy = identity::resolved(&world, proxy);
        let inbound = inbound::targets(&world, &proxy);
        let class = Arc::new(class_of(&proxy, epoch));
        RenderedView::new(epoch.number, View::new(&world, &class, inbound), self.renderings.clone(), None)
    }

    fn pinned(&self, epoch: &PublishedSnapshot, key: u128, pins: &Pins) -> Arc<Snapshot> {
        let find = |made: &[(u64, u128, Arc<Snapshot>)]| {
            made.iter().find(|(number, of, _)| (*number, *of) == (epoch.number, key)).map(|(_, _, world)| world.clone())
        };
        if let Some(world) = find(&lock(&self.pinned)) {
            return world;
        }
        let world = Arc::new(pinned(&epoch.snapshot, pins));
        let mut made = lock(&self.pinned);
        made.retain(|(number, _, _)| *number >= epoch.number);
        if made.len() >= MOST_PINNED {
            made.remove(0);
        }
        made.push((epoch.number, key, world.clone()));
        world
    }

    fn slot(&self, key: ClassKey, class: Proxy) -> Arc<ViewClass> {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.get(&key).and_then(Weak::upgrade) {
            return slot;
        }
        slots.retain(|_, slot| slot.strong_count() > 0);
        let slot = ViewClass { proxy: Arc::new(class), excess: self.excesses.class(), cut: Mutex::default() };
        let slot = Arc::new(slot);
        slots.insert(key, Arc::downgrade(&slot));
        slot
    }

    /// Drops what was made for classes that have no client any more, and for epochs before this one.
    pub fn free_unused(&self, epoch: u64) {
        lock(&self.pinned).retain(|(number, _, _)| *number >= epoch);
        let (before, now) = {
            let mut slots = lock(&self.slots);
            let before = slots.len();
            slots.retain(|_, slot| slot.strong_count() > 0);
            (before, slots.len())
        };
        if now == 0 {
            self.renderings.clear();
        } else if now < before {
            self.renderings.sweep();
        }
    }

    pub fn renderings(&self) -> &Renderings {
        &self.renderings
    }

    /// How many classes are connected.
    pub fn len(&self) -> usize {
        lock(&self.slots).values().filter(|slot| slot.strong_count() > 0).count()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The proxy without what tells it from its replicas. Its addresses stay only where output depends on them.
fn class_of(proxy: &Proxy, epoch: &PublishedSnapshot) -> Proxy {
    const OWN: &[&str] = &["NAME", "INSTANCE_IPS", "POD_UID", "UID"];
    let mut class = proxy.clone();
    class.id = "".into();
    let filters = &epoch.snapshot.extensions.envoy_filters;
    let read = |key: &str| filters.iter().any(|filter| filter.metadata_keys().any(|name| name == key));
    class.metadata.retain(|key, _| !OWN.contains(&&**key) || read(key));
    if !epoch.addresses_matter() {
        class.ips = families(proxy);
    }
    class
}

/// One address per family, in the proxy's order: all that output depends on.
fn families(proxy: &Proxy) -> Vec<std::net::IpAddr> {
    let mut found: Vec<std::net::IpAddr> = Vec::new();
    for ip in &proxy.ips {
        if !found.iter().any(|known| known.is_ipv4() == ip.is_ipv4()) {
            let any: std::net::IpAddr = if ip.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
            found.push(any);
        }
    }
    found
}

impl ViewClass {
    fn advance(
        &self,
        epoch: &PublishedSnapshot,
        world: &Snapshot,
        inbound: Vec<ServiceTarget>,
        renderings: &Arc<Renderings>,
    ) -> Arc<RenderedView> {
        let mut held = lock(&self.cut);
        let next = match held.as_ref() {
            Some(cut) if cut.epoch >= epoch.number => return cut.clone(),
            Some(cut) => cut.next(epoch, world, inbound),
            None => {
                let view = View::new(world, &self.proxy, inbound);
                RenderedView::new(epoch.number, view, renderings.clone(), Some(self.excess.clone()))
            }
        };
        let next = Arc::new(next);
        *held = Some(next.clone());
        next
    }
}

/// The config of one class of clients in one epoch.
pub struct RenderedView {
    pub epoch: u64,
    pub view: Arc<View>,
    renderings: Arc<Renderings>,
    /// Where to report what is left out, if this is served to anyone.
    excess: Option<Arc<ClassExcess>>,
    clusters: OnceLock<Arc<ResourceSet>>,
    endpoints: OnceLock<Arc<ResourceSet>>,
    listeners: OnceLock<Arc<ResourceSet>>,
    routes: OnceLock<Arc<ResourceSet>>,
    extensions: OnceLock<Arc<ResourceSet>>,
    names: OnceLock<Arc<ResourceSet>>,
    secrets: OnceLock<Arc<ResourceSet>>,
    guards: OnceLock<Guards>,
}

impl fmt::Debug for RenderedView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenderedView").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl RenderedView {
    pub fn new(epoch: u64, view: View, renderings: Arc<Renderings>, excess: Option<Arc<ClassExcess>>) -> RenderedView {
        RenderedView {
            epoch,
            view: Arc::new(view),
            renderings,
            excess,
            clusters: OnceLock::new(),
            endpoints: OnceLock::new(),
            listeners: OnceLock::new(),
            routes: OnceLock::new(),
            extensions: OnceLock::new(),
            names: OnceLock::new(),
            secrets: OnceLock::new(),
            guards: OnceLock::new(),
        }
    }

    /// What policies ask of those who reach clients of this class.
    pub fn guards(&self) -> Guards {
        *self.guards.get_or_init(|| guards(&self.view))
    }

    /// The same class in a later epoch.
    fn next(&self, epoch: &PublishedSnapshot, world: &Snapshot, inbound: Vec<ServiceTarget>) -> RenderedView {
        let delta = epoch.since(self.epoch);
        let view = match &delta {
            Some(delta) if is_endpoints_only(delta) => self.view.refreshed(world, inbound),
            _ => View::new(world, &self.view.proxy, inbound),
        };
        let affected = delta.map_or_else(Affected::everything, |delta: Delta| affected(&delta, &self.view, &view));
        let next = RenderedView::new(epoch.number, view, self.renderings.clone(), self.excess.clone());
        take_over(&self.clusters, &next.clusters, !affected.clusters);
        take_over(&self.listeners, &next.listeners, !affected.listeners);
        take_over(&self.routes, &next.routes, !affected.routes);
        take_over(&self.extensions, &next.extensions, !affected.extensions);
        take_over(&self.names, &next.names, !affected.names);
        take_over(&self.secrets, &next.secrets, !affected.secrets);
        if let (false, Some(before)) = (affected.clusters, self.endpoints.get()) {
            let set = match affected.endpoints {
                AffectedEndpoints::None => Some(before.clone()),
                AffectedEndpoints::Of(keys) => {
                    let hosts: Vec<&str> = keys.iter().map(|k| k.hostname.as_str()).collect();
                    Some(next.endpoints_renewed(before, &hosts))
                }
                AffectedEndpoints::All => None,
            };
            set.map(|set| next.endpoints.set(set));
        }
        next
    }

    /// This class's resources of one type; `None` for types that are not served.
    pub fn set(&self, kind: &TypeUrl) -> Option<Arc<ResourceSet>> {
        let made = match kind {
            k if *k == TypeUrl::CLUSTER => self.clusters.get_or_init(|| self.make_clusters()),
            k if *k == TypeUrl::ENDPOINT => self.endpoints.get_or_init(|| self.make_endpoints()),
            k if *k == TypeUrl::LISTENER => self.listeners.get_or_init(|| self.make_listeners()),
            k if *k == TypeUrl::ROUTE => self.routes.get_or_init(|| self.make_routes()),
            k if *k == TypeUrl::EXTENSION => self.extensions.get_or_init(|| self.make_extensions()),
            k if *k == TypeUrl::NAME_TABLE => self.names.get_or_init(|| self.make_names()),
            k if *k == TypeUrl::SECRET => self.secrets.get_or_init(|| self.make_secrets()),
            _ => return None,
        };
        Some(made.clone())
    }

    fn make_clusters(&self) -> Arc<ResourceSet> {
        let mut problems = Vec::new();
        let clusters = client::clusters(&self.view, &mut problems);
        let rendered = clusters.iter().map(|wanted| (fingerprint(wanted), || patch::cluster::resource(wanted)));
        self.rendered(TypeUrl::CLUSTER, rendered, problems)
    }

    fn make_listeners(&self) -> Arc<ResourceSet> {
        let mut problems = Vec::new();
        let listeners = client::listeners(&self.view, &mut problems);
        let rendered = listeners.iter().map(|wanted| (fingerprint(wanted), || patch::listener::resource(wanted)));
        self.rendered(TypeUrl::LISTENER, rendered, problems)
    }

    /// The set of all that fits.
    fn rendered<R: FnOnce() -> Resource>(
        &self,
        kind: TypeUrl,
        planned: impl Iterator<Item = (u128, R)>,
        problems: Vec<Problem>,
    ) -> Arc<ResourceSet> {
        let mut bounded = self.bounded();
        for (fingerprint, render) in planned {
            // What is likely not to be sent must not be held by the renderings either.
            let is_exceeded = bounded.is_exceeded();
            bounded.add_resource(if is_exceeded { render() } else { self.renderings.get(fingerprint, render) });
        }
        let (resources, _) = self.fitting(&kind, bounded, problems);
        Arc::new(ResourceSet::new(kind, resources))
    }

    fn bounded(&self) -> Bounded<Resource> {
        let knobs = &self.view.settings.knobs;
        Bounded::new(knobs.resource_bytes as usize, knobs.push_bytes as usize)
    }

    /// What fits, and the names of the rest, which is reported.
    fn fitting(
        &self,
        kind: &TypeUrl,
        bounded: Bounded<Resource>,
        mut problems: Vec<Problem>,
    ) -> (Vec<Resource>, BTreeSet<Arc<str>>) {
        let (kept, left_out) = bounded.finish();
        let View { proxy, settings, .. } = &*self.view;
        problems.extend(excess::left_out(kind, &proxy.namespace, &left_out, &settings.knobs));
        if let Some(excess) = &self.excess {
            excess.set(kind, "", problems);
        }
        let names = left_out.into_iter().map(|found| found.name).collect();
        (kept.into_iter().map(|(_, resource)| resource).collect(), names)
    }

    fn make_endpoints(&self) -> Arc<ResourceSet> {
        let clusters = self.clusters.get_or_init(|| self.make_clusters());
        let assignments = clusters.resources().filter_map(|c| assignment(&self.view, &self.renderings, &c.name));
        self.endpoint_set(assignments)
    }

    /// The load assignments of before, those of some hosts made again.
    fn endpoints_renewed(&self, before: &ResourceSet, hosts: &[&str]) -> Arc<ResourceSet> {
        let stale = |name: &str| parse_outbound_cluster(name).is_some_and(|c| hosts.contains(&c.host.as_str()));
        let renewed = before.resources().filter_map(|resource| {
            if stale(&resource.name) {
                assignment(&self.view, &self.renderings, &resource.name)
            } else {
                Some(resource.clone())
            }
        });
        self.endpoint_set(renewed)
    }

    fn endpoint_set(&self, assignments: impl Iterator<Item = Resource>) -> Arc<ResourceSet> {
        let mut bounded = self.bounded();
        assignments.for_each(|assignment| bounded.add_resource(assignment));
        let (resources, left_out) = self.fitting(&TypeUrl::ENDPOINT, bounded, Vec::new());
        let set = ResourceSet::new(TypeUrl::ENDPOINT, resources);
        let (view, renderings) = (self.view.clone(), self.renderings.clone());
        let named = self.by_name(TypeUrl::ENDPOINT);
        Arc::new(set.with_fallback(move |name| {
            if left_out.contains(name) {
                return None;
            }
            named.answer(name, |_| assignment(&view, &renderings, name))
        }))
    }

    fn make_routes(&self) -> Arc<ResourceSet> {
        let (view, renderings) = (self.view.clone(), self.renderings.clone());
        let named = self.by_name(TypeUrl::ROUTE);
        let set = ResourceSet::new(TypeUrl::ROUTE, []);
        Arc::new(set.with_fallback(move |name| {
            named.answer(name, |problems| tables::route_table(&view, name, &renderings, problems))
        }))
    }

    fn by_name(&self, kind: TypeUrl) -> ByName {
        let View { proxy, settings, .. } = &*self.view;
        ByName::new(kind, proxy.namespace.clone(), settings.clone(), self.excess.clone())
    }

    fn make_extensions(&self) -> Arc<ResourceSet> {
        Arc::new(ResourceSet::new(TypeUrl::EXTENSION, client::extensions(&self.view)))
    }

    /// Secrets that are asked for by name. Their bytes go to no cache.
    fn make_secrets(&self) -> Arc<ResourceSet> {
        let view = self.view.clone();
        let set = ResourceSet::new(TypeUrl::SECRET, []);
        Arc::new(set.with_fallback(move |name| {
            let plan = plan::secret::secret(&view, name)?;
            Some(Resource::new(name, &render::secret::secret(&plan)))
        }))
    }

    fn make_names(&self) -> Arc<ResourceSet> {
        let plan = sidecar::name_table(&self.view);
        let table = self.renderings.get(fingerprint(&plan), || Resource::new("", &render::names::name_table(&plan)));
        Arc::new(ResourceSet::new(TypeUrl::NAME_TABLE, [table]))
    }
}

fn assignment(view: &View, renderings: &Renderings, cluster: &str) -> Option<Resource> {
    let plan = sidecar::endpoints(view, cluster)?;
    let render = || Resource::new(plan.name.clone(), &render::endpoints::endpoints(&plan));
    Some(renderings.get(fingerprint(&plan), render))
}

fn take_over<T: Clone>(before: &OnceLock<T>, now: &OnceLock<T>, unchanged: bool) {
    if let (true, Some(value)) = (unchanged, before.get()) {
        let _ = now.set(value.clone());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this kind of proxy is served at all.
pub fn is_served(kind: ProxyKind) -> bool {
    matches!(kind, ProxyKind::Sidecar | ProxyKind::Router)
}
