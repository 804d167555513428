//! Random histories against a client that behaves as Envoy does where it matters for traffic: it warms clusters,
//! delays its answer to clusters meanwhile, and requests what its clusters and listeners refer to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use api::TypeUrl;
use api::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use proptest::prelude::{Just, ProptestConfig, Strategy, prop, prop_oneof, proptest};

use super::{DecodedResponse, Stream, World, encoded, resource};
use crate::payload::Protocol;

const CLUSTERS: usize = 5;

#[derive(Clone, Debug)]
enum Op {
    /// Cluster i has this content, or does not exist. A route may point at it from the same world on.
    Cluster(usize, Option<u8>),
    Endpoints(usize, u8),
    /// The route points at the n-th existing cluster.
    Route(usize),
    ServerReads,
    ServerSends,
    ClientReads,
    Reconnect,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..CLUSTERS, prop::option::weighted(0.6, 0..3_u8)).prop_map(|(at, content)| Op::Cluster(at, content)),
        2 => (0..CLUSTERS, 0..9_u8).prop_map(|(at, content)| Op::Endpoints(at, content)),
        2 => (0..CLUSTERS).prop_map(Op::Route),
        6 => Just(Op::ServerReads),
        6 => Just(Op::ServerSends),
        6 => Just(Op::ClientReads),
        1 => Just(Op::Reconnect),
    ]
}

/// The world: clusters with content and endpoints, and the cluster that the route points at.
#[derive(Clone)]
struct Mesh {
    clusters: BTreeMap<usize, u8>,
    endpoints: BTreeMap<usize, u8>,
    route: usize,
}

impl Mesh {
    fn world(&self) -> World {
        let mut world = World::of("CDS; EDS; LDS l=1; RDS");
        for (at, content) in &self.clusters {
            world.insert(TypeUrl::CLUSTER, &name(*at), &content.to_string());
            world.insert(TypeUrl::ENDPOINT, &name(*at), &self.endpoints.get(at).unwrap_or(&0).to_string());
        }
        let target = self.clusters.keys().cycle().nth(self.route).map_or_else(String::new, |at| name(*at));
        world.insert(TypeUrl::ROUTE, "r", &target);
        world
    }
}

fn name(at: usize) -> String {
    format!("c{at}")
}

enum Request {
    Sotw(DiscoveryRequest),
    Delta(DeltaDiscoveryRequest),
}

/// Envoy's state, as far as this test needs it.
#[derive(Default)]
struct Envoy {
    held: BTreeMap<TypeUrl, BTreeMap<String, String>>,
    nonces: BTreeMap<TypeUrl, String>,
    warming: BTreeSet<String>,
    /// Clusters that have been warm and accept requests, also while a newer version is warming.
    active: BTreeSet<String>,
    /// Answers for clusters, sent once no cluster is warming.
    withheld: Vec<Request>,
    subscribed: BTreeSet<String>,
    /// Clusters have been warm; listeners are requested only then.
    initialised: bool,
    wants_route: bool,
    unsure: bool,
}

struct Play {
    protocol: Protocol,
    mesh: Mesh,
    stream: Stream,
    envoy: Envoy,
    to_server: VecDeque<Request>,
    to_client: VecDeque<DecodedResponse>,
}

impl Play {
    fn new(protocol: Protocol) -> Self {
        let mesh = Mesh { clusters: [(0, 0)].into(), endpoints: BTreeMap::new(), route: 0 };
        let stream = fresh(protocol, &mesh);
        let mut play =
            Self { protocol, mesh, stream, envoy: Envoy::default(), to_server: [].into(), to_client: [].into() };
        play.connect();
        play
    }

    /// A new stream. Envoy requests types in the order of its subscriptions, and clusters only when none is warming.
    fn connect(&mut self) {
        self.stream = fresh(self.protocol, &self.mesh);
        (self.to_server, self.to_client) = ([].into(), [].into());
        self.envoy.nonces.clear();
        self.envoy.withheld.clear();
        let clusters = self.request(TypeUrl::CLUSTER, &[], &[], true);
        self.say(clusters);
        let names: Vec<String> = self.envoy.subscribed.iter().cloned().collect();
        if !names.is_empty() {
            let endpoints = self.request(TypeUrl::ENDPOINT, &names, &[], true);
            self.say(endpoints);
        }
        if self.envoy.initialised {
            let listeners = self.request(TypeUrl::LISTENER, &[], &[], true);
            self.say(listeners);
        }
        // Before the client's first request, a new SotW stream cannot know which clusters its routes use.
        self.envoy.unsure = self.protocol == Protocol::Sotw;
        if self.envoy.wants_route {
            let routes = self.request(TypeUrl::ROUTE, &["r".to_owned()], &[], true);
            self.say(routes);
        }
    }

    fn request(&self, kind: TypeUrl, add: &[String], remove: &[String], first: bool) -> Request {
        let type_url = kind.to_string();
        match self.protocol {
            Protocol::Sotw => {
                let resource_names = match &kind {
                    kind if *kind == TypeUrl::ENDPOINT => self.envoy.subscribed.iter().cloned().collect(),
                    kind if *kind == TypeUrl::ROUTE => vec!["r".to_owned()],
                    _ => Vec::new(),
                };
                let response_nonce = self.envoy.nonces.get(&kind).cloned().unwrap_or_default();
                let version_info = if self.envoy.held.contains_key(&kind) { "1".to_owned() } else { String::new() };
                Request::Sotw(DiscoveryRequest {
                    type_url,
                    resource_names,
                    response_nonce,
                    version_info,
                    ..Default::default()
                })
            }
            Protocol::Delta => {
                let held = self.envoy.held.get(&kind).into_iter().flatten().filter(|_| first);
                let version =
                    |(name, content): (&String, &String)| (name.clone(), resource(name, content).version.to_string());
                Request::Delta(DeltaDiscoveryRequest {
                    type_url,
                    resource_names_subscribe: add.to_vec(),
                    resource_names_unsubscribe: remove.to_vec(),
                    initial_resource_versions: held.map(version).collect(),
                    ..Default::default()
                })
            }
        }
    }

    fn say(&mut self, request: Request) {
        let type_url = match &request {
            Request::Sotw(request) => &request.type_url,
            Request::Delta(request) => &request.type_url,
        };
        if type_url == TypeUrl::CLUSTER.as_str() && !self.envoy.warming.is_empty() {
            self.envoy.withheld.push(request);
        } else {
            self.to_server.push_back(request);
        }
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Cluster(at, Some(content)) => drop(self.mesh.clusters.insert(at, content)),
            Op::Cluster(at, None) if self.mesh.clusters.len() > 1 => drop(self.mesh.clusters.remove(&at)),
            Op::Cluster(_, None) => {}
            Op::Endpoints(at, content) => drop(self.mesh.endpoints.insert(at, content)),
            Op::Route(target) => self.mesh.route = target,
            Op::ServerReads => drop(self.server_reads()),
            Op::ServerSends => drop(self.server_sends()),
            Op::ClientReads => drop(self.client_reads()),
            Op::Reconnect => self.connect(),
        }
    }

    fn publish(&mut self) {
        adopt(&mut self.stream, &self.mesh);
        self.stream.session.world_moved();
    }

    fn server_reads(&mut self) -> bool {
        match self.to_server.pop_front() {
            Some(Request::Sotw(request)) => self.stream.session.sotw(request).unwrap(),
            Some(Request::Delta(request)) => self.stream.session.delta(encoded(&request)).unwrap(),
            None => return false,
        }
        true
    }

    fn server_sends(&mut self) -> bool {
        let response = self.stream.session.next(self.stream.now);
        let decoded = response.map(|response| DecodedResponse::read(&response, self.protocol));
        let sent = decoded.is_some();
        self.to_client.extend(decoded);
        sent
    }

    fn client_reads(&mut self) -> bool {
        let Some(decoded) = self.to_client.pop_front() else { return false };
        self.envoy.nonces.insert(decoded.kind.clone(), decoded.nonce.clone());
        let before = self.envoy.held.get(&decoded.kind).cloned().unwrap_or_default();
        let mut held = before.clone();
        if self.protocol == Protocol::Sotw && [TypeUrl::CLUSTER, TypeUrl::LISTENER].contains(&decoded.kind) {
            held.clear();
        }
        held.extend(decoded.resources.iter().cloned());
        decoded.removed.iter().for_each(|name| drop(held.remove(name)));
        self.envoy.held.insert(decoded.kind.clone(), held.clone());
        if decoded.kind == TypeUrl::CLUSTER {
            self.clusters_changed(&before, &held);
        } else if decoded.kind == TypeUrl::ENDPOINT {
            let updated = decoded.resources.iter().map(|(name, _)| name).chain(&decoded.removed);
            self.envoy.warming = &self.envoy.warming - &updated.cloned().collect();
            let clusters = self.envoy.held[&TypeUrl::CLUSTER].keys();
            let warm = clusters.filter(|name| !self.envoy.warming.contains(*name));
            self.envoy.active.extend(warm.cloned());
        } else if decoded.kind == TypeUrl::LISTENER && !self.envoy.wants_route {
            self.envoy.wants_route = true;
            let routes = self.request(TypeUrl::ROUTE, &["r".to_owned()], &[], true);
            self.say(routes);
        }
        self.answer(&decoded);
        if self.envoy.warming.is_empty() {
            self.to_server.extend(self.envoy.withheld.drain(..));
            if !std::mem::replace(&mut self.envoy.initialised, true) {
                let listeners = self.request(TypeUrl::LISTENER, &[], &[], true);
                self.say(listeners);
            }
        }
        self.envoy.unsure &= decoded.kind != TypeUrl::ROUTE;
        self.check_route();
        true
    }

    /// New and changed clusters warm; the subscription to endpoints follows the clusters.
    fn clusters_changed(&mut self, before: &BTreeMap<String, String>, held: &BTreeMap<String, String>) {
        let changed = held.iter().filter(|(name, content)| before.get(*name) != Some(content));
        self.envoy.warming.extend(changed.map(|(name, _)| name.clone()));
        self.envoy.warming.retain(|name| held.contains_key(name));
        self.envoy.active.retain(|name| held.contains_key(name));
        let now: BTreeSet<String> = held.keys().cloned().collect();
        let add: Vec<String> = now.difference(&self.envoy.subscribed).cloned().collect();
        let remove: Vec<String> = self.envoy.subscribed.difference(&now).cloned().collect();
        let first = self.envoy.subscribed.is_empty() && !self.envoy.nonces.contains_key(&TypeUrl::ENDPOINT);
        self.envoy.subscribed = now;
        if let Some(endpoints) = self.envoy.held.get_mut(&TypeUrl::ENDPOINT) {
            remove.iter().for_each(|name| drop(endpoints.remove(name)));
        }
        if !add.is_empty() || !remove.is_empty() {
            let request = self.request(TypeUrl::ENDPOINT, &add, &remove, first);
            self.say(request);
        }
    }

    fn answer(&mut self, decoded: &DecodedResponse) {
        let request = match self.request(decoded.kind.clone(), &[], &[], false) {
            Request::Delta(request) => {
                Request::Delta(DeltaDiscoveryRequest { response_nonce: decoded.nonce.clone(), ..request })
            }
            sotw => sotw,
        };
        self.say(request);
    }

    /// No route ever points at a cluster that does not exist or is not warm.
    fn check_route(&self) {
        if self.envoy.unsure {
            return;
        }
        let Some(target) = self.envoy.held.get(&TypeUrl::ROUTE).and_then(|routes| routes.get("r")) else { return };
        assert!(self.envoy.active.contains(target), "route to {target}, warm are {:?}", self.envoy.active);
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            if !(self.server_reads() | self.server_sends() | self.client_reads()) {
                return;
            }
        }
        panic!("the conversation does not end");
    }

    fn check(&self) {
        assert!(self.envoy.warming.is_empty(), "still warming: {:?}", self.envoy.warming);
        let world = self.mesh.world().0;
        for kind in [TypeUrl::CLUSTER, TypeUrl::ENDPOINT, TypeUrl::LISTENER, TypeUrl::ROUTE] {
            let mut held = self.envoy.held.get(&kind).cloned().unwrap_or_default();
            if kind == TypeUrl::ENDPOINT {
                held.retain(|name, _| self.envoy.subscribed.contains(name));
            }
            assert_eq!(held, world[&kind], "{kind:?}");
        }
    }
}

fn fresh(protocol: Protocol, mesh: &Mesh) -> Stream {
    let mut stream = Stream::new(protocol, "");
    adopt(&mut stream, mesh);
    stream
}

/// Load assignments exist for every name, as recommended for control planes.
fn adopt(stream: &mut Stream, mesh: &Mesh) {
    stream.adopt_with(mesh.world(), |kind, name| *kind == TypeUrl::ENDPOINT && name.starts_with('c'));
}

fn play(protocol: Protocol, history: Vec<Op>) {
    let mut play = Play::new(protocol);
    for op in history {
        let world = matches!(op, Op::Cluster(..) | Op::Endpoints(..) | Op::Route(_));
        play.step(op);
        if world {
            play.publish();
        }
    }
    play.settle();
    play.stream.now += Duration::from_secs(2);
    play.settle();
    play.check();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sotw_envoy_keeps_its_routes_whole_and_ends_warm(history in prop::collection::vec(op(), 0..120)) {
        play(Protocol::Sotw, history);
    }

    #[test]
    fn delta_envoy_keeps_its_routes_whole_and_ends_warm(history in prop::collection::vec(op(), 0..120)) {
        play(Protocol::Delta, history);
    }
}
