//! Tests of the protocol's rules on a session without a network, and the fixture they share.

mod delta;
mod envoy;
mod history;
mod instructions;
mod names;
mod order;
mod rejection;
mod sotw;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use api::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use api::{Resource, TypeUrl};
use prost::Message;

use crate::budget::Budget;
use crate::control::{Client, Event, Former, Rejection, Verdict};
use crate::decode::{DeltaRequest, decode};
use crate::limits::Limits;
use crate::payload::Protocol;
use crate::response::Response;
use crate::session::{Session, Terms};
use crate::set::ResourceSet;

/// All resources: for each type the names and contents.
#[derive(Clone, Debug, Default)]
struct World(BTreeMap<TypeUrl, BTreeMap<String, String>>);

impl World {
    /// `"CDS a=1 b=2"`, one type a line.
    fn of(text: &str) -> Self {
        let mut world = Self::default();
        for line in text.split(';').map(str::trim).filter(|line| !line.is_empty()) {
            let mut words = line.split_whitespace();
            let resources = world.0.entry(kind(words.next().unwrap())).or_default();
            for word in words {
                let (name, content) = word.split_once('=').unwrap();
                resources.insert(name.to_owned(), content.to_owned());
            }
        }
        world
    }
}

impl World {
    fn insert(&mut self, kind: TypeUrl, name: &str, content: &str) {
        self.0.entry(kind).or_default().insert(name.to_owned(), content.to_owned());
    }
}

fn kind(short: &str) -> TypeUrl {
    match short {
        "CDS" => TypeUrl::CLUSTER,
        "EDS" => TypeUrl::ENDPOINT,
        "LDS" => TypeUrl::LISTENER,
        "RDS" => TypeUrl::ROUTE,
        "SDS" => TypeUrl::SECRET,
        "ECDS" => TypeUrl::EXTENSION,
        "NDS" => TypeUrl::NAME_TABLE,
        other => TypeUrl::from(other.to_owned()),
    }
}

/// The body of a test resource contains its name, because SotW responses do not.
fn resource(name: &str, content: &str) -> Resource {
    Resource::encoded(name, format!("{name}={content}").into_bytes())
}

#[derive(Default)]
struct Fake {
    sets: BTreeMap<TypeUrl, Arc<ResourceSet>>,
    /// Which unlisted names have an answer.
    answers: Option<fn(&TypeUrl, &str) -> bool>,
    events: Vec<String>,
    /// Replaces `sets` when a response is rejected.
    instead: Option<BTreeMap<TypeUrl, Arc<ResourceSet>>>,
}

impl Client for Fake {
    async fn changed(&mut self) {
        std::future::pending().await
    }

    fn current(&mut self, kind: &TypeUrl) -> Option<Arc<ResourceSet>> {
        self.sets.get(kind).cloned()
    }

    fn observe(&mut self, event: &Event<'_>) {
        let text = match event {
            Event::Subscribed { kind, wildcard, names } => {
                format!("{kind:?} wants {} names, all: {wildcard}", names.len())
            }
            Event::Unsubscribed { kind } => format!("{kind:?} wants nothing"),
            Event::Sent { kind, resources, removed, .. } => format!("{kind:?} sent {resources}-{removed}"),
            Event::Acked { kind, .. } => format!("{kind:?} acked"),
            Event::Nacked { kind, message, .. } => format!("{kind:?} nacked: {message}"),
            Event::Settled => "settled".to_owned(),
            Event::Stale { kind, .. } => format!("{kind:?} stale"),
            Event::Health { error } => format!("health: {error:?}"),
            // Of every type in every world.
            Event::UpToDate { .. } => return,
        };
        self.events.push(text);
    }

    fn rejected(&mut self, rejection: &Rejection<'_>) -> Verdict {
        let Some(sets) = self.instead.take() else { return Verdict::Unchanged };
        (self.sets, self.answers) = (sets, None);
        let content = |resource: &Resource| String::from_utf8(resource.body.joined().to_vec()).unwrap();
        for offered in rejection.offered {
            let former = match &offered.former {
                Former::Nothing => "nothing".to_owned(),
                Former::Unknown => "something".to_owned(),
                Former::Known(resource) => content(resource),
            };
            self.events.push(format!("{} after {former}", content(&offered.resource)));
        }
        Verdict::Changed
    }
}

/// A stream under test. Responses read as `"CDS a=1 b=2 -c"`.
struct Stream {
    session: Session<Fake>,
    now: Instant,
    nonces: BTreeMap<TypeUrl, String>,
    names: BTreeMap<TypeUrl, Vec<String>>,
}

impl Stream {
    fn new(protocol: Protocol, world: &str) -> Self {
        Self::with(protocol, None, Limits::default(), world)
    }

    fn with(protocol: Protocol, only: Option<TypeUrl>, limits: Limits, world: &str) -> Self {
        let terms = Terms {
            protocol,
            only,
            limits: Arc::new(limits),
            identifier: "test".into(),
            stream: 7,
            share: Budget::default().share(None),
        };
        let now = Instant::now();
        let mut stream = Self {
            session: Session::new(Fake::default(), terms, now),
            now,
            nonces: BTreeMap::new(),
            names: BTreeMap::new(),
        };
        stream.adopt(World::of(world));
        stream
    }

    fn adopt(&mut self, world: World) {
        self.adopt_with(world, |_, name| name.starts_with('~'));
    }

    /// Makes a world current in which some unlisted names have an answer too.
    /// Types that are the same as before keep their set, as they do in a control plane.
    fn adopt_with(&mut self, world: World, answers: fn(&TypeUrl, &str) -> bool) {
        let Fake { sets, answers: before, .. } = &mut self.session.client;
        let is_same = before.replace(answers).is_some_and(|before| std::ptr::fn_addr_eq(before, answers));
        let new = Self::sets(world, answers);
        sets.retain(|kind, _| new.contains_key(kind));
        for (kind, set) in new {
            match sets.get(&kind) {
                Some(known) if is_same && known.version() == set.version() => {}
                _ => _ = sets.insert(kind, set),
            }
        }
    }

    fn sets(world: World, answers: fn(&TypeUrl, &str) -> bool) -> BTreeMap<TypeUrl, Arc<ResourceSet>> {
        let set = |(kind, resources): (TypeUrl, BTreeMap<String, String>)| {
            let listed = resources.iter().map(|(name, content)| resource(name, content));
            let set = ResourceSet::new(kind.clone(), listed);
            let of = kind.clone();
            let set = set.with_fallback(move |name| answers(&of, name).then(|| resource(name, "fallback")));
            (kind, Arc::new(set))
        };
        world.0.into_iter().map(set).collect()
    }

    /// Makes this the current world and returns the responses.
    fn world(&mut self, world: &str) -> Vec<String> {
        self.adopt(World::of(world));
        self.session.world_moved();
        self.responses()
    }

    /// All responses that are due, as text.
    fn responses(&mut self) -> Vec<String> {
        let mut texts = Vec::new();
        while let Some(response) = self.session.next(self.now) {
            texts.push(self.text(&response));
        }
        texts
    }

    fn text(&mut self, response: &Response) -> String {
        let decoded = DecodedResponse::read(response, self.session.terms.protocol);
        self.nonces.insert(decoded.kind.clone(), decoded.nonce.clone());
        decoded.to_string()
    }

    /// SotW: subscribes to these names, with the last nonce.
    fn want(&mut self, short: &str, names: &[&str]) -> Vec<String> {
        self.names.insert(kind(short), owned(names));
        self.ack(short)
    }

    /// Acknowledges the last response of a type.
    fn ack(&mut self, short: &str) -> Vec<String> {
        let nonce = self.nonces.get(&kind(short)).cloned().unwrap_or_default();
        self.request(short, &nonce, None)
    }

    fn nack(&mut self, short: &str) -> Vec<String> {
        let nonce = self.nonces[&kind(short)].clone();
        self.request(short, &nonce, Some("bad"))
    }

    /// Acknowledges until the server has nothing to send; returns all responses.
    fn settle(&mut self) -> Vec<String> {
        let mut said = self.responses();
        let mut at = 0;
        while at < said.len() {
            let short = said[at].split_whitespace().next().unwrap().to_owned();
            said.extend(self.ack(&short));
            at += 1;
            assert!(at < 100, "no end to {said:?}");
        }
        said
    }

    fn request(&mut self, short: &str, nonce: &str, error: Option<&str>) -> Vec<String> {
        let error_detail = error.map(|message| api::wire::google::rpc::Status {
            code: 3,
            message: message.to_owned(),
            details: Vec::new(),
        });
        let type_url = kind(short).to_string();
        let response_nonce = nonce.to_owned();
        match self.session.terms.protocol {
            Protocol::Sotw => {
                let resource_names = self.names.get(&kind(short)).cloned().unwrap_or_default();
                let request =
                    DiscoveryRequest { type_url, resource_names, response_nonce, error_detail, ..Default::default() };
                self.session.sotw(request).unwrap();
            }
            Protocol::Delta => {
                let request = DeltaDiscoveryRequest { type_url, response_nonce, error_detail, ..Default::default() };
                self.session.delta(encoded(&request)).unwrap();
            }
        }
        self.responses()
    }

    /// Delta: `"a b -c a@version"` subscribes to a and b, unsubscribes from c and reports a version of a as held.
    fn change(&mut self, short: &str, words: &str) -> Vec<String> {
        let mut request = DeltaDiscoveryRequest { type_url: kind(short).to_string(), ..Default::default() };
        for word in words.split_whitespace() {
            if let Some(name) = word.strip_prefix('-') {
                request.resource_names_unsubscribe.push(name.to_owned());
            } else if let Some((name, content)) = word.split_once('@') {
                let version = resource(name, content).version.to_string();
                request.initial_resource_versions.insert(name.to_owned(), version);
            } else {
                request.resource_names_subscribe.push(word.to_owned());
            }
        }
        self.session.delta(encoded(&request)).unwrap();
        self.responses()
    }

    fn events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.session.client.events)
    }
}

/// A response as its client decodes it.
#[derive(Clone, Debug)]
struct DecodedResponse {
    kind: TypeUrl,
    nonce: String,
    version: String,
    resources: Vec<(String, String)>,
    removed: Vec<String>,
}

impl DecodedResponse {
    fn read(response: &Response, protocol: Protocol) -> Self {
        let bytes = response.chunks.concat();
        assert_eq!(bytes[0], 0);
        assert_eq!(u32::from_be_bytes(bytes[1..5].try_into().unwrap()) as usize, bytes.len() - 5);
        let pair = |any: &api::Any| {
            let text = String::from_utf8(any.value.clone()).unwrap();
            text.split_once('=').map(|(name, content)| (name.to_owned(), content.to_owned())).unwrap()
        };
        match protocol {
            Protocol::Sotw => {
                let response = DiscoveryResponse::decode(&bytes[5..]).unwrap();
                let named = response.control_plane.map(|control_plane| control_plane.identifier);
                let is_named = response.nonce.ends_with("-1") || TypeUrl::from(response.type_url.clone()).is_debug();
                assert_eq!(named.as_deref(), is_named.then_some("test"));
                Self {
                    kind: response.type_url.into(),
                    nonce: response.nonce,
                    version: response.version_info,
                    resources: response.resources.iter().map(pair).collect(),
                    removed: Vec::new(),
                }
            }
            Protocol::Delta => {
                let response = DeltaDiscoveryResponse::decode(&bytes[5..]).unwrap();
                Self {
                    kind: response.type_url.into(),
                    nonce: response.nonce,
                    version: response.system_version_info,
                    resources: response.resources.iter().map(|r| pair(r.resource.as_ref().unwrap())).collect(),
                    removed: response.removed_resources,
                }
            }
        }
    }
}

impl std::fmt::Display for DecodedResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.kind.short())?;
        self.resources.iter().try_for_each(|(name, content)| write!(f, " {name}={content}"))?;
        self.removed.iter().try_for_each(|name| write!(f, " -{name}"))
    }
}

/// A request as the server reads it.
fn encoded(request: &DeltaDiscoveryRequest) -> DeltaRequest {
    decode(&request.encode_to_vec().into(), &Limits { request_names: usize::MAX, ..Limits::default() }).unwrap()
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}

const NOTHING: [&str; 0] = [];
