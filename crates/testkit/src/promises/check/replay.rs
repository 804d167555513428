//! What each proxy received, accepted and used over time, examined event by event.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::super::Promise;
use super::super::content::{Marker, ResourceKind, ResponseContent};
use super::super::history::{EndpointSet, EnvoyDump, Event, HeldHashes, MeshPart, ProxyName, TimedEvent};
use super::Checked;
use super::timeline::{ServiceInputs, Timeline};

pub(super) struct Replay<'a> {
    timeline: &'a Timeline,
    markers: &'a [Marker],
    proxies: BTreeMap<ProxyName, ProxyState>,
    checked: Checked,
}

/// One proxy at some moment.
#[derive(Default)]
struct ProxyState {
    connected_at: Option<Duration>,
    is_connected: bool,
    replica: usize,
    /// All replicas that it was ever connected to.
    replicas: BTreeSet<usize>,
    /// Clusters that were sent and not removed since, rejected or not.
    clusters: BTreeSet<String>,
    /// The content of clusters of known services, which inputs never change.
    cluster_hashes: HashMap<String, u64>,
    held: HeldHashes,
    /// Responses without an answer yet, by nonce.
    unanswered: HashMap<String, ResponseContent>,
    has_rejected: bool,
    /// Nonces of all accepted responses.
    accepted: HashSet<(ResourceKind, String)>,
    /// The newest state of each service that was accepted from each replica.
    acknowledged: HashMap<(usize, Arc<str>), usize>,
    /// Endpoints over time, for services of which something was received.
    received: HashMap<Arc<str>, Vec<(Duration, EndpointSet)>>,
}

impl ProxyState {
    /// The parts between a source and this proxy.
    fn chain(&self, name: &ProxyName, source: &Arc<str>) -> Vec<MeshPart> {
        let replicas = self.replicas.iter().map(|replica| MeshPart::Replica(*replica));
        [MeshPart::Source(source.clone()), MeshPart::Proxy(name.clone())].into_iter().chain(replicas).collect()
    }

    /// The endpoints of a service that it received last.
    fn current(&self, service: &str) -> EndpointSet {
        let last = self.received.get(service).and_then(|all| all.last());
        last.map(|(_, endpoints)| endpoints.clone()).unwrap_or_default()
    }

    fn accept(&mut self, response: &ResponseContent) {
        let held = self.held.entry(response.kind).or_default();
        if response.is_complete {
            held.clear();
        }
        held.extend(response.resources.iter().map(|resource| (resource.name.clone(), resource.hash)));
        held.retain(|name, _| !response.removed.contains(name));
    }
}

impl<'a> Replay<'a> {
    pub(super) fn new(timeline: &'a Timeline, markers: &'a [Marker]) -> Replay<'a> {
        Replay { timeline, markers, proxies: BTreeMap::new(), checked: Checked::default() }
    }

    pub(super) fn apply(&mut self, TimedEvent { at, event }: &TimedEvent) {
        match event {
            Event::Input { .. } | Event::FaultBegun { .. } | Event::FaultEnded { .. } => {}
            Event::Connected { proxy, replica } => {
                let state = self.proxies.entry(proxy.clone()).or_default();
                state.connected_at.get_or_insert(*at);
                state.is_connected = true;
                state.replica = *replica;
                state.replicas.insert(*replica);
                state.unanswered.clear();
            }
            Event::Disconnected { proxy } => self.proxies.entry(proxy.clone()).or_default().is_connected = false,
            Event::Received { proxy, response } => self.received(*at, proxy, response),
            Event::Answered { proxy, kind, nonce, accepted } => self.answered(*at, proxy, *kind, nonce, *accepted),
            Event::Dropped { proxy, kind, names } => {
                let held = self.proxies.entry(proxy.clone()).or_default().held.entry(*kind).or_default();
                held.retain(|name, _| !names.contains(name));
            }
            Event::Reported { proxy, kind, sent, acked } => self.reported(*at, proxy, *kind, sent, acked),
            Event::Dumped { proxy, dump } => self.dumped(*at, proxy, dump),
            Event::Expected { proxy, held } => self.expected(*at, proxy, held),
        }
    }

    fn received(&mut self, at: Duration, proxy: &ProxyName, response: &ResponseContent) {
        self.isolation(at, proxy, response);
        match response.kind {
            ResourceKind::Clusters => self.clusters(at, proxy, response),
            ResourceKind::Endpoints => self.endpoints(at, proxy, response),
            ResourceKind::Routes => self.order(at, proxy, response),
            ResourceKind::Listeners | ResourceKind::Secrets => {}
        }
        let state = self.proxies.entry(proxy.clone()).or_default();
        state.unanswered.insert(response.nonce.clone(), response.clone());
    }

    fn isolation(&mut self, at: Duration, proxy: &ProxyName, response: &ResponseContent) {
        for resource in &response.resources {
            self.checked.examine(Promise::Isolation);
            for marker in resource.markers.iter().filter_map(|number| self.markers.get(*number)) {
                self.checked.require(Promise::Isolation, marker.allowed.contains(proxy), at, proxy, || {
                    format!("{} has bytes that belong to {:?}", resource.name, marker.allowed)
                });
            }
        }
    }

    fn clusters(&mut self, at: Duration, proxy: &ProxyName, response: &ResponseContent) {
        let state = self.proxies.entry(proxy.clone()).or_default();
        if response.is_complete {
            state.clusters.clear();
        }
        state.clusters.extend(response.resources.iter().map(|resource| resource.name.clone()));
        state.clusters.retain(|name| !response.removed.contains(name));
        for resource in response.resources.iter().filter(|r| self.timeline.services.contains_key(&*r.name)) {
            let before = *state.cluster_hashes.entry(resource.name.clone()).or_insert(resource.hash);
            self.checked.require(Promise::FaultIsolation, before == resource.hash, at, proxy, || {
                format!("the definition of {} changed, although no input changed it", resource.name)
            });
        }
        let absent: Vec<Arc<str>> = match response.is_complete {
            true => self.timeline.services.keys().filter(|name| !state.clusters.contains(&***name)).cloned().collect(),
            false => response.removed.iter().map(|name| name.as_str().into()).collect(),
        };
        for service in absent {
            self.has(at, proxy, &service, &EndpointSet::new());
        }
    }

    fn endpoints(&mut self, at: Duration, proxy: &ProxyName, response: &ResponseContent) {
        for resource in &response.resources {
            self.has(at, proxy, &resource.name.as_str().into(), &resource.endpoints);
        }
        for name in &response.removed {
            self.has(at, proxy, &name.as_str().into(), &EndpointSet::new());
        }
    }

    /// A proxy has received these endpoints of a service, or that it has none.
    fn has(&mut self, at: Duration, proxy: &ProxyName, service: &Arc<str>, endpoints: &EndpointSet) {
        let Some(inputs) = self.timeline.services.get(service) else { return };
        let state = self.proxies.entry(proxy.clone()).or_default();
        let chain = state.chain(proxy, &inputs.source);
        let known = state.acknowledged.get(&(state.replica, service.clone())).copied().unwrap_or_default();
        // Older endpoints are a regress; no endpoints are a loss.
        let least = if endpoints.is_empty() { known } else { 0 };
        let is_allowed = inputs.allows(self.timeline, &chain, endpoints, at, least);
        known_to_source(&mut self.checked, inputs, is_allowed, (at, proxy, service), endpoints);
        if let Some(index) = inputs.newest(endpoints, at).filter(|_| !endpoints.is_empty()) {
            self.checked.require(Promise::NoRegress, index >= known, at, proxy, || {
                format!("{service} went back to {endpoints:?}, input {index}; input {known} was acknowledged")
            });
        }
        state.received.entry(service.clone()).or_default().push((at, endpoints.clone()));
    }

    fn order(&mut self, at: Duration, proxy: &ProxyName, response: &ResponseContent) {
        let state = self.proxies.entry(proxy.clone()).or_default();
        if state.has_rejected {
            // Clusters that it rejected are not sent to it any more.
            return;
        }
        let known = |target: &&String| self.timeline.services.contains_key(target.as_str());
        for resource in &response.resources {
            for target in resource.targets.iter().filter(known) {
                self.checked.require(Promise::Order, state.clusters.contains(target), at, proxy, || {
                    format!("route table {} leads to {target}, which was not sent", resource.name)
                });
            }
        }
    }

    fn answered(&mut self, at: Duration, proxy: &ProxyName, kind: ResourceKind, nonce: &str, accepted: bool) {
        let state = self.proxies.entry(proxy.clone()).or_default();
        let Some(response) = state.unanswered.remove(nonce) else { return };
        if !accepted {
            // What it rejected is replaced by an older version, which may be that of all types.
            state.has_rejected = true;
            state.acknowledged.clear();
            return;
        }
        state.accept(&response);
        state.accepted.insert((kind, nonce.to_owned()));
        if kind == ResourceKind::Endpoints {
            for resource in &response.resources {
                let service: Arc<str> = resource.name.as_str().into();
                let inputs = self.timeline.services.get(&service);
                let index = inputs.and_then(|inputs| inputs.newest(&resource.endpoints, at)).unwrap_or_default();
                // An empty set may be an older state as well; it proves nothing.
                if !resource.endpoints.is_empty() && !state.has_rejected {
                    state.acknowledged.insert((state.replica, service), index);
                }
            }
        }
    }

    fn reported(&mut self, at: Duration, proxy: &ProxyName, kind: ResourceKind, sent: &str, acked: &str) {
        if sent.is_empty() || sent != acked {
            return;
        }
        let state = self.proxies.entry(proxy.clone()).or_default();
        let is_true = state.accepted.contains(&(kind, acked.to_owned()));
        self.checked.require(Promise::Honesty, is_true, at, proxy, || {
            format!("it is reported as synced for {kind:?} with response {acked}, which it did not accept")
        });
    }

    fn dumped(&mut self, at: Duration, proxy: &ProxyName, dump: &EnvoyDump) {
        let timeline = self.timeline;
        for (service, inputs) in &timeline.services {
            let endpoints = dump.endpoints.get(&**service).cloned().unwrap_or_default();
            self.has(at, proxy, service, &endpoints);
            if let Some(index) = inputs.newest(&endpoints, at).filter(|_| !endpoints.is_empty()) {
                // A real Envoy uses what it shows, so showing is acknowledging.
                let state = self.proxies.entry(proxy.clone()).or_default();
                state.acknowledged.insert((state.replica, service.clone()), index);
            }
        }
        for target in dump.targets.iter().filter(|target| timeline.services.contains_key(target.as_str())) {
            self.checked.require(Promise::Order, dump.clusters.contains(target), at, proxy, || {
                format!("a route leads to {target}, which it does not have")
            });
        }
    }

    fn expected(&mut self, at: Duration, proxy: &ProxyName, expected: &HeldHashes) {
        let state = self.proxies.entry(proxy.clone()).or_default();
        let nothing = BTreeMap::new();
        let kinds: BTreeSet<ResourceKind> = state.held.keys().chain(expected.keys()).copied().collect();
        for kind in kinds {
            let (held, expected) = (state.held.get(&kind).unwrap_or(&nothing), expected.get(&kind).unwrap_or(&nothing));
            let names: BTreeSet<&String> = held.keys().chain(expected.keys()).collect();
            for name in names {
                self.checked.require(Promise::Convergence, held.get(name) == expected.get(name), at, proxy, || {
                    let state = |hash: Option<&u64>| hash.map_or("nothing".to_owned(), |hash| format!("{hash:016x}"));
                    format!(
                        "{kind:?} {name}: it holds {}, a fresh server sends {}",
                        state(held.get(name)),
                        state(expected.get(name))
                    )
                });
            }
        }
    }

    /// Examines what must have happened until the end.
    pub(super) fn finish(mut self, end: Duration) -> Checked {
        for (name, state) in &self.proxies {
            let Some(connected_at) = state.connected_at else { continue };
            for (service, inputs) in &self.timeline.services {
                let times = state.received.get(service).map_or(&[][..], Vec::as_slice);
                timely(self.timeline, &mut self.checked, inputs, (name, state, service), times, (connected_at, end));
                let last = inputs.states.last().map(|last| last.endpoints.clone()).unwrap_or_default();
                let chain = state.chain(name, &inputs.source);
                let done = inputs.states.last().map(|last| last.done).unwrap_or_default().max(connected_at);
                if state.is_connected && self.timeline.undisturbed(&chain, done, end) > self.timeline.window {
                    let current = state.current(service);
                    self.checked.require(Promise::Convergence, current == last, end, name, || {
                        format!("at the end it has {current:?} of {service} instead of {last:?}")
                    });
                }
            }
        }
        self.checked
    }
}

/// Examines whether endpoints that a proxy has were in the source, and are not gone for too long.
fn known_to_source(
    checked: &mut Checked,
    inputs: &ServiceInputs,
    is_allowed: bool,
    (at, proxy, service): (Duration, &ProxyName, &Arc<str>),
    endpoints: &EndpointSet,
) {
    if endpoints.is_empty() {
        checked.require(Promise::NoWipe, is_allowed, at, proxy, || format!("{service} lost all its endpoints"));
    } else {
        checked.require(Promise::NoInvention, is_allowed, at, proxy, || match inputs.newest(endpoints, at) {
            Some(index) => format!("{service} has endpoints of input {index}, which were replaced long ago"),
            None => format!("{service} has endpoints that were never in its source: {endpoints:?}"),
        });
    }
}

/// Whether each state of a service arrived at a proxy in time, or was replaced by a later one that did.
fn timely(
    timeline: &Timeline,
    checked: &mut Checked,
    inputs: &ServiceInputs,
    (name, state, service): (&ProxyName, &ProxyState, &Arc<str>),
    received: &[(Duration, EndpointSet)],
    (connected_at, end): (Duration, Duration),
) {
    let chain = state.chain(name, &inputs.source);
    // What the proxy has at some time: nothing until it received something.
    let nothing = (Duration::ZERO, EndpointSet::new());
    let had: Vec<&(Duration, EndpointSet)> = std::iter::once(&nothing).chain(received).collect();
    for (index, input) in inputs.states.iter().enumerate().skip(1) {
        let due = input.done.max(connected_at);
        // The first time at which its content is that of this input or a later one.
        let arrivals = had.iter().enumerate().filter_map(|(number, (at, endpoints))| {
            let replaced = had.get(number + 1).map_or(Duration::MAX, |(at, _)| *at);
            let later = inputs.states[index..].iter().filter(|state| state.begun < replaced);
            let same = later.filter(|state| state.endpoints == *endpoints).map(|state| state.begun.max(*at));
            same.min()
        });
        let arrival = arrivals.min().map(|at| at.max(due));
        let until = arrival.unwrap_or(end);
        let waited = timeline.undisturbed(&chain, due, until.max(due));
        let others = timeline.faults_between(due, until);
        // Without any fault, lateness is a failure to converge.
        let promise = if others.is_empty() { Promise::Convergence } else { Promise::FaultIsolation };
        checked.require(promise, waited <= timeline.window, until, name, || {
            let how = if arrival.is_some() { "arrived after" } else { "did not arrive within" };
            format!("input {index} of {service} {how} {:.1} s, during {others:?}", waited.as_secs_f64())
        });
    }
}
