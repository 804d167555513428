//! Random histories of both protocols against a simple client that follows the protocol's rules.
//! Requests and responses are queued, so every order of sending and reading occurs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use api::TypeUrl;
use api::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop, prop_oneof, proptest};

use super::{DecodedResponse, Stream, World, encoded};
use crate::payload::Protocol;

const KINDS: [TypeUrl; 5] =
    [TypeUrl::CLUSTER, TypeUrl::ENDPOINT, TypeUrl::LISTENER, TypeUrl::ROUTE, TypeUrl::NAME_TABLE];
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Types whose responses list all resources, and for which no names means all resources.
fn is_whole(kind: &TypeUrl) -> bool {
    ![TypeUrl::ENDPOINT, TypeUrl::ROUTE].contains(kind)
}

#[derive(Clone, Debug)]
enum Op {
    /// A resource gets this content, or is removed.
    World(usize, usize, Option<u8>),
    /// The client subscribes to exactly these names, or to everything.
    Want(usize, BTreeSet<usize>, bool),
    /// The client repeats its first request (SotW: empty nonce; delta: the same names).
    Again(usize),
    /// The client sends a nonce that the server never sent.
    Bogus(usize),
    ServerReads,
    ServerSends,
    ClientReads {
        accept: bool,
    },
}

fn op(rejections: bool) -> impl Strategy<Value = Op> {
    let kind = || 0..KINDS.len();
    let names = || prop::collection::btree_set(0..NAMES.len(), 0..=NAMES.len());
    let accept = if rejections { any::<bool>().boxed() } else { Just(true).boxed() };
    prop_oneof![
        4 => (kind(), 0..NAMES.len(), prop::option::weighted(0.7, 0..3_u8)).prop_map(|(k, n, c)| Op::World(k, n, c)),
        3 => (kind(), names(), prop::bool::weighted(0.3)).prop_map(|(k, n, all)| Op::Want(k, n, all)),
        1 => kind().prop_map(Op::Again),
        1 => kind().prop_map(Op::Bogus),
        6 => Just(Op::ServerReads),
        6 => Just(Op::ServerSends),
        6 => accept.prop_map(|accept| Op::ClientReads { accept }),
    ]
}

enum Request {
    Sotw(DiscoveryRequest),
    Delta(DeltaDiscoveryRequest),
}

/// The client's state of one type.
#[derive(Default)]
struct Wish {
    names: BTreeSet<String>,
    wildcard: bool,
    /// SotW: names were listed once, so an empty list now means no resources.
    named: bool,
    nonce: String,
    held: BTreeMap<String, String>,
}

impl Wish {
    fn covers(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }
}

/// The last response of a type.
struct Last {
    text: String,
    rejected: bool,
    /// Something happened since that may cause the same response again.
    disturbed: bool,
}

struct Play {
    protocol: Protocol,
    stream: Stream,
    world: World,
    wishes: BTreeMap<TypeUrl, Wish>,
    /// Every name the client ever subscribed to; `*` for all.
    asked: BTreeMap<TypeUrl, BTreeSet<String>>,
    to_server: VecDeque<Request>,
    to_client: VecDeque<DecodedResponse>,
    unanswered: BTreeMap<TypeUrl, String>,
    last: BTreeMap<TypeUrl, Last>,
    /// SotW: the names of the last request that the server read.
    read: BTreeMap<String, Vec<String>>,
}

impl Play {
    fn new(protocol: Protocol) -> Self {
        let mut world = World::default();
        KINDS.iter().for_each(|kind| drop(world.0.insert(kind.clone(), BTreeMap::new())));
        let mut stream = Stream::new(protocol, "");
        stream.adopt(world.clone());
        Self {
            protocol,
            stream,
            world,
            wishes: BTreeMap::new(),
            asked: BTreeMap::new(),
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            unanswered: BTreeMap::new(),
            last: BTreeMap::new(),
            read: BTreeMap::new(),
        }
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::World(kind, name, content) => self.change(&KINDS[kind], NAMES[name], content.map(|c| c.to_string())),
            Op::Want(kind, names, all) => {
                let names = names.into_iter().map(|at| NAMES[at].to_owned()).collect();
                self.want(&KINDS[kind], names, all);
            }
            Op::Again(kind) => self.again(&KINDS[kind]),
            Op::Bogus(kind) => self.bogus(&KINDS[kind]),
            Op::ServerReads => drop(self.server_reads()),
            Op::ServerSends => drop(self.server_sends()),
            Op::ClientReads { accept } => drop(self.client_reads(accept)),
        }
    }

    fn change(&mut self, kind: &TypeUrl, name: &str, content: Option<String>) {
        let resources = self.world.0.entry(kind.clone()).or_default();
        match content {
            Some(content) => resources.insert(name.to_owned(), content),
            None => resources.remove(name),
        };
        self.disturb(kind);
        self.stream.adopt(self.world.clone());
        self.stream.session.world_moved();
    }

    fn want(&mut self, kind: &TypeUrl, names: BTreeSet<String>, all: bool) {
        let first = !self.wishes.contains_key(kind);
        let wish = self.wishes.entry(kind.clone()).or_default();
        let asked = self.asked.entry(kind.clone()).or_default();
        asked.extend(names.iter().cloned());
        let request = match self.protocol {
            Protocol::Sotw => {
                let mut list: Vec<String> = names.iter().cloned().collect();
                list.extend(all.then(|| "*".to_owned()));
                wish.named |= !list.is_empty();
                wish.wildcard = all || (is_whole(kind) && !wish.named);
                wish.names = names;
                Request::Sotw(DiscoveryRequest {
                    type_url: kind.to_string(),
                    resource_names: list,
                    response_nonce: wish.nonce.clone(),
                    ..Default::default()
                })
            }
            Protocol::Delta => {
                let mut subscribe: Vec<String> = names.difference(&wish.names).cloned().collect();
                let mut unsubscribe: Vec<String> = wish.names.difference(&names).cloned().collect();
                let implied = first && is_whole(kind) && subscribe.is_empty() && !all;
                subscribe.extend((all && !wish.wildcard).then(|| "*".to_owned()));
                unsubscribe.extend((!all && wish.wildcard).then(|| "*".to_owned()));
                wish.wildcard = all || implied;
                wish.names = names;
                Request::Delta(DeltaDiscoveryRequest {
                    type_url: kind.to_string(),
                    resource_names_subscribe: subscribe,
                    resource_names_unsubscribe: unsubscribe,
                    ..Default::default()
                })
            }
        };
        asked.extend(wish.wildcard.then(|| "*".to_owned()));
        let (names, wildcard) = (wish.names.clone(), wish.wildcard);
        wish.held.retain(|name, _| wildcard || names.contains(name));
        self.to_server.push_back(request);
    }

    fn again(&mut self, kind: &TypeUrl) {
        let Some(wish) = self.wishes.get(kind) else { return };
        let type_url = kind.to_string();
        let names: Vec<String> = wish.names.iter().cloned().chain(wish.wildcard.then(|| "*".to_owned())).collect();
        self.to_server.push_back(match self.protocol {
            // Without names it would be read by the rule for first requests; leave that to `want`.
            Protocol::Sotw if names.is_empty() => return,
            Protocol::Sotw => Request::Sotw(DiscoveryRequest { type_url, resource_names: names, ..Default::default() }),
            Protocol::Delta => Request::Delta(DeltaDiscoveryRequest {
                type_url,
                resource_names_subscribe: names,
                ..Default::default()
            }),
        });
        let named = self.protocol == Protocol::Sotw;
        self.wishes.entry(kind.clone()).or_default().named |= named;
    }

    fn bogus(&mut self, kind: &TypeUrl) {
        if !self.wishes.contains_key(kind) {
            return;
        }
        let (type_url, response_nonce) = (kind.to_string(), "bogus".to_owned());
        self.to_server.push_back(match self.protocol {
            Protocol::Sotw => Request::Sotw(DiscoveryRequest { type_url, response_nonce, ..Default::default() }),
            Protocol::Delta => Request::Delta(DeltaDiscoveryRequest { type_url, response_nonce, ..Default::default() }),
        });
    }

    fn server_reads(&mut self) -> bool {
        let Some(request) = self.to_server.pop_front() else { return false };
        let (type_url, nonce, rejected, asks) = match &request {
            Request::Sotw(r) => (&r.type_url, &r.response_nonce, r.error_detail.is_some(), self.says_more(r)),
            Request::Delta(r) => {
                let asks = !r.resource_names_subscribe.is_empty() || !r.resource_names_unsubscribe.is_empty();
                (&r.type_url, &r.response_nonce, r.error_detail.is_some(), asks)
            }
        };
        let (kind, nonce) = (TypeUrl::from(type_url.clone()), nonce.clone());
        if self.unanswered.get(&kind) == Some(&nonce) {
            self.unanswered.remove(&kind);
            self.last.entry(kind.clone()).and_modify(|last| last.rejected = rejected);
        }
        if asks {
            self.disturb(&kind);
        }
        match request {
            Request::Sotw(request) => self.stream.session.sotw(request).unwrap(),
            Request::Delta(request) => self.stream.session.delta(encoded(&request)).unwrap(),
        }
        true
    }

    /// SotW requests repeat all names; a plain acknowledgement repeats those of the previous request.
    fn says_more(&mut self, request: &DiscoveryRequest) -> bool {
        let names = request.resource_names.clone();
        let before = self.read.insert(request.type_url.clone(), names.clone());
        request.response_nonce.is_empty() || before != Some(names)
    }

    fn disturb(&mut self, kind: &TypeUrl) {
        self.last.entry(kind.clone()).and_modify(|last| last.disturbed = true);
    }

    fn server_sends(&mut self) -> bool {
        let Some(response) = self.stream.session.next(self.stream.now) else { return false };
        let decoded = DecodedResponse::read(&response, self.protocol);
        let asked = self.asked.get(&decoded.kind).unwrap_or_else(|| panic!("no subscription to the type of {decoded}"));
        let names = decoded.resources.iter().map(|(name, _)| name).chain(&decoded.removed);
        for name in names {
            assert!(asked.contains("*") || asked.contains(name), "no subscription to {name} of {decoded}");
        }
        let earlier = self.unanswered.insert(decoded.kind.clone(), decoded.nonce.clone());
        assert_eq!(earlier, None, "sent before the answer to the response before: {decoded}");
        let last = Last { text: decoded.to_string(), rejected: false, disturbed: false };
        if let Some(before) = self.last.insert(decoded.kind.clone(), last) {
            let again = before.rejected && !before.disturbed && before.text == decoded.to_string();
            assert!(!again, "rejected, and sent again: {decoded}");
        }
        if decoded.kind == TypeUrl::CLUSTER {
            self.disturb(&TypeUrl::ENDPOINT);
        }
        self.to_client.push_back(decoded);
        true
    }

    fn client_reads(&mut self, accept: bool) -> bool {
        let Some(decoded) = self.to_client.pop_front() else { return false };
        let wish = self.wishes.get_mut(&decoded.kind).unwrap();
        wish.nonce.clone_from(&decoded.nonce);
        if accept {
            apply(self.protocol, wish, &decoded);
        }
        let error_detail = (!accept).then(|| api::wire::google::rpc::Status { code: 3, ..Default::default() });
        let (type_url, response_nonce) = (decoded.kind.to_string(), decoded.nonce);
        self.to_server.push_back(match self.protocol {
            Protocol::Sotw => {
                let implied = wish.wildcard && !wish.named;
                let star = (wish.wildcard && !implied).then(|| "*".to_owned());
                let resource_names = wish.names.iter().cloned().chain(star).collect();
                let version_info = if accept { decoded.version } else { String::new() };
                Request::Sotw(DiscoveryRequest {
                    type_url,
                    resource_names,
                    response_nonce,
                    version_info,
                    error_detail,
                    ..Default::default()
                })
            }
            Protocol::Delta => {
                Request::Delta(DeltaDiscoveryRequest { type_url, response_nonce, error_detail, ..Default::default() })
            }
        });
        true
    }

    /// Reads, sends and accepts until both sides have nothing to send.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            if !(self.server_reads() | self.server_sends() | self.client_reads(true)) {
                return;
            }
        }
        panic!("the conversation does not end");
    }

    /// The client holds exactly the existing resources that it subscribes to.
    fn check(&self) {
        for (kind, wish) in &self.wishes {
            let world = self.world.0[kind].iter().filter(|(name, _)| wish.covers(name));
            let expected: BTreeMap<_, _> = world.collect();
            // SotW cannot express the removal of a route or a load assignment.
            let removable = self.protocol == Protocol::Delta || is_whole(kind);
            let held = wish.held.iter().filter(|(name, _)| removable || expected.contains_key(name));
            assert_eq!(held.collect::<BTreeMap<_, _>>(), expected, "{kind:?}");
        }
    }
}

fn apply(protocol: Protocol, wish: &mut Wish, decoded: &DecodedResponse) {
    if protocol == Protocol::Sotw && is_whole(&decoded.kind) {
        wish.held.clear();
    }
    for (name, content) in &decoded.resources {
        if wish.covers(name) {
            wish.held.insert(name.clone(), content.clone());
        }
    }
    decoded.removed.iter().for_each(|name| drop(wish.held.remove(name)));
}

fn play(protocol: Protocol, history: Vec<Op>) {
    let rejections = history.iter().any(|op| matches!(op, Op::ClientReads { accept: false }));
    let mut play = Play::new(protocol);
    history.into_iter().for_each(|op| play.step(op));
    play.settle();
    if !rejections {
        play.check();
    }
    // Everything has changed, so earlier rejections no longer matter.
    for (kind, name) in KINDS.iter().flat_map(|kind| NAMES.map(|name| (kind, name))) {
        play.change(kind, name, Some(format!("last-{name}")));
    }
    play.settle();
    play.check();
    assert!(play.unanswered.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sotw_client_ends_with_the_current_state(history in prop::collection::vec(op(false), 0..80)) {
        play(Protocol::Sotw, history);
    }

    #[test]
    fn sotw_client_recovers_from_its_own_rejections(history in prop::collection::vec(op(true), 0..80)) {
        play(Protocol::Sotw, history);
    }

    #[test]
    fn delta_client_ends_with_the_current_state(history in prop::collection::vec(op(false), 0..80)) {
        play(Protocol::Delta, history);
    }

    #[test]
    fn delta_client_recovers_from_its_own_rejections(history in prop::collection::vec(op(true), 0..80)) {
        play(Protocol::Delta, history);
    }
}
