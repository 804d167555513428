//! All resources of one type that a class of clients may see, with the bytes that go on the wire for them.
//! A set is shared by every stream with the same view, so each body is encoded once, not once per stream.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use api::{Resource, TypeUrl, Version};
use bytes::{BufMut, Bytes, BytesMut};
use prost::encoding::{encode_varint, encoded_len_varint};
use xxhash_rust::xxh3::Xxh3;

/// Which of the two variants of the protocol a stream speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protocol {
    Sotw,
    Delta,
}

/// Resources from here on are sent from where they lie; smaller ones are joined, to spare frames.
const LARGE: usize = 8 * 1024;

/// Steps remembered per set. Streams lag by one or two epochs; a longer memory would only hold bytes.
const STEPS: usize = 4;

type Fallback = Arc<dyn Fn(&str) -> Option<Resource> + Send + Sync>;

/// The resources of one type in the order of their names.
pub struct ResourceSet {
    kind: TypeUrl,
    /// The type of the messages, where it is not the one that clients ask for.
    content: Option<TypeUrl>,
    version: Version,
    resources: Box<[Resource]>,
    fallback: Option<Fallback>,
    withheld: BTreeSet<Arc<str>>,
    whole: [OnceLock<Payload>; 2],
    steps: Mutex<Vec<(Version, Arc<Step>)>>,
}

impl ResourceSet {
    /// The set of these resources. Of two with one name the first stays.
    pub fn new(kind: TypeUrl, resources: impl IntoIterator<Item = Resource>) -> Self {
        let mut resources: Vec<Resource> = resources.into_iter().collect();
        resources.sort_by(|a, b| a.name.cmp(&b.name));
        resources.dedup_by(|later, first| later.name == first.name);
        Self {
            kind,
            content: None,
            version: version_of(&resources),
            resources: resources.into(),
            fallback: None,
            withheld: BTreeSet::new(),
            whole: Default::default(),
            steps: Mutex::default(),
        }
    }

    /// The set with an answer for names that are asked for but not listed.
    /// Envoy waits for every load assignment it asks for, so a set of those should have one.
    pub fn with_fallback(mut self, answer: impl Fn(&str) -> Option<Resource> + Send + Sync + 'static) -> Self {
        self.fallback = Some(Arc::new(answer));
        self
    }

    /// The set with names of which nothing is said: clients keep what they have.
    /// A SotW listing has no form for that, and removes them.
    pub fn with_withheld(mut self, names: impl IntoIterator<Item = Arc<str>>) -> Self {
        self.withheld.extend(names);
        self
    }

    /// The set of messages of another type than the one that clients ask for, as configuration over xDS has it.
    pub fn with_content(mut self, content: TypeUrl) -> Self {
        self.content = Some(content);
        self
    }

    /// The type of its messages, as it stands in each `Any`.
    pub(crate) fn content(&self) -> &TypeUrl {
        self.content.as_ref().unwrap_or(&self.kind)
    }

    pub(crate) fn withholds(&self, name: &str) -> bool {
        self.withheld.contains(name)
    }

    pub fn kind(&self) -> &TypeUrl {
        &self.kind
    }

    /// The hash of all names and versions.
    pub fn version(&self) -> Version {
        self.version
    }

    pub fn resources(&self) -> &[Resource] {
        &self.resources
    }

    /// The listed resource of this name.
    pub fn listed(&self, name: &str) -> Option<&Resource> {
        find(&self.resources, name)
    }

    /// The resource a client gets that asks for this name: the listed one, else the fallback's answer.
    pub fn get(&self, name: &str) -> Option<Resource> {
        self.listed(name).cloned().or_else(|| self.fallback.as_ref()?(name))
    }

    /// Every listed resource, encoded once for all streams.
    pub(crate) fn whole(&self, protocol: Protocol) -> Payload {
        self.whole[protocol as usize].get_or_init(|| Payload::of(self.content(), &self.resources, protocol)).clone()
    }

    /// What changes for a client that holds `old`, computed and encoded once for all streams that make the step.
    pub(crate) fn step_from(&self, old: &Self) -> Arc<Step> {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, step)) = steps.iter().find(|(from, _)| *from == old.version) {
            return Arc::clone(step);
        }
        let step = Arc::new(Step::between(&old.resources, &self.resources));
        if steps.len() == STEPS {
            steps.remove(0);
        }
        steps.push((old.version, Arc::clone(&step)));
        step
    }
}

impl fmt::Debug for ResourceSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResourceSet").field("kind", &self.kind).field("resources", &self.resources).finish()
    }
}

fn find<'a>(ordered: &'a [Resource], name: &str) -> Option<&'a Resource> {
    ordered.binary_search_by(|r| (*r.name).cmp(name)).ok().map(|at| &ordered[at])
}

fn version_of(resources: &[Resource]) -> Version {
    let mut hash = Xxh3::new();
    for resource in resources {
        hash.update(&(resource.name.len() as u64).to_be_bytes());
        hash.update(resource.name.as_bytes());
        hash.update(&resource.version.to_bytes());
    }
    Version::of(&hash.digest128().to_be_bytes())
}

/// The difference between two sets of one type.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(crate) changed: Vec<Resource>,
    pub(crate) removed: Vec<Arc<str>>,
    payload: [OnceLock<Payload>; 2],
}

impl Step {
    fn between(old: &[Resource], new: &[Resource]) -> Self {
        let unchanged = |r: &&Resource| find(old, &r.name).is_some_and(|held| held.version == r.version);
        Self {
            changed: new.iter().filter(|r| !unchanged(r)).cloned().collect(),
            removed: old.iter().map(|r| &r.name).filter(|name| find(new, name).is_none()).cloned().collect(),
            payload: Default::default(),
        }
    }

    pub(crate) fn payload(&self, content: &TypeUrl, protocol: Protocol) -> Payload {
        self.payload[protocol as usize].get_or_init(|| Payload::of(content, &self.changed, protocol)).clone()
    }
}

/// The `resources` field of a response, encoded, in pieces that streams share.
#[derive(Clone, Debug)]
pub(crate) struct Payload {
    pub(crate) chunks: Arc<[Bytes]>,
}

impl Payload {
    pub(crate) fn of(content: &TypeUrl, resources: &[Resource], protocol: Protocol) -> Self {
        let mut writer = Writer { content: message_type(content), protocol, chunks: Vec::new(), open: BytesMut::new() };
        resources.iter().for_each(|resource| writer.resource(resource));
        writer.cut();
        Self { chunks: writer.chunks.into() }
    }

    /// This payload followed by another; repeated fields of a message may be concatenated.
    pub(crate) fn followed_by(&self, more: &Self) -> Self {
        Self { chunks: self.chunks.iter().chain(more.chunks.iter()).cloned().collect() }
    }
}

/// The type of the messages inside. Only the sync status is of another type than what is asked for.
fn message_type(kind: &TypeUrl) -> &str {
    if *kind == TypeUrl::DEBUG_SYNCZ {
        return "type.googleapis.com/envoy.service.status.v3.ClientConfig";
    }
    kind.as_str()
}

/// Writes `repeated Any resources = 2` (SotW) or `repeated Resource resources = 2` (delta).
struct Writer<'a> {
    content: &'a str,
    protocol: Protocol,
    chunks: Vec<Bytes>,
    open: BytesMut,
}

impl Writer<'_> {
    fn resource(&mut self, resource: &Resource) {
        let any = field_len(self.content.len()) + field_len(resource.body.len());
        match self.protocol {
            Protocol::Sotw => self.header(2, any),
            Protocol::Delta => {
                let version = resource.version.to_string();
                self.header(2, field_len(version.len()) + field_len(any) + field_len(resource.name.len()));
                self.field(1, version.as_bytes());
                self.field(3, resource.name.as_bytes());
                self.header(2, any);
            }
        }
        self.field(1, self.content.as_bytes());
        self.header(2, resource.body.len());
        if resource.body.len() < LARGE {
            self.open.put_slice(&resource.body);
        } else {
            self.cut();
            self.chunks.push(resource.body.clone());
        }
    }

    fn field(&mut self, number: u8, bytes: &[u8]) {
        self.header(number, bytes.len());
        self.open.put_slice(bytes);
    }

    /// Key of a length-delimited field. All field numbers used here fit the short form.
    fn header(&mut self, number: u8, len: usize) {
        self.open.put_u8(number << 3 | 2);
        encode_varint(len as u64, &mut self.open);
    }

    fn cut(&mut self) {
        if !self.open.is_empty() {
            self.chunks.push(self.open.split().freeze());
        }
    }
}

fn field_len(len: usize) -> usize {
    1 + encoded_len_varint(len as u64) + len
}

#[cfg(test)]
mod tests {
    use api::envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse};
    use prost::Message;

    use super::{Arc, Bytes, Payload, Protocol, Resource, ResourceSet, TypeUrl};

    fn set(resources: &[(&str, &str)]) -> ResourceSet {
        let resources = resources.iter().map(|(name, body)| Resource::encoded(*name, Bytes::from(body.to_string())));
        ResourceSet::new(TypeUrl::CLUSTER, resources)
    }

    fn joined(payload: &Payload) -> Vec<u8> {
        payload.chunks.concat()
    }

    #[test]
    fn payload_is_what_a_protobuf_encoder_would_write() {
        let large = "x".repeat(super::LARGE);
        let set = set(&[("b", "two"), ("a", "one"), ("c", &large)]);
        let sotw = DiscoveryResponse::decode(&*joined(&set.whole(Protocol::Sotw))).unwrap();
        let bodies: Vec<_> = sotw.resources.iter().map(|any| any.value.as_slice()).collect();
        assert_eq!(bodies, [b"one".as_slice(), b"two", large.as_bytes()]);
        assert!(sotw.resources.iter().all(|any| any.type_url == TypeUrl::CLUSTER.as_str()));

        let delta = DeltaDiscoveryResponse::decode(&*joined(&set.whole(Protocol::Delta))).unwrap();
        let names: Vec<_> = delta.resources.iter().map(|r| (r.name.as_str(), r.version.clone())).collect();
        let expected: Vec<_> = set.resources().iter().map(|r| (&*r.name, r.version.to_string())).collect();
        assert_eq!(names, expected);
        assert_eq!(delta.resources[2].resource.as_ref().unwrap().value, large.as_bytes());
    }

    #[test]
    fn messages_may_be_of_another_type_than_the_one_asked_for() {
        let set = set(&[("a", "one")]).with_content(TypeUrl::LISTENER);
        let sotw = DiscoveryResponse::decode(&*joined(&set.whole(Protocol::Sotw))).unwrap();
        assert_eq!(sotw.resources[0].type_url, TypeUrl::LISTENER.as_str());
        assert_eq!(set.kind(), &TypeUrl::CLUSTER);
    }

    #[test]
    fn bodies_are_encoded_once_and_large_resources_never_copied() {
        let set = set(&[("a", &"x".repeat(super::LARGE))]);
        let (one, two) = (set.whole(Protocol::Sotw), set.whole(Protocol::Sotw));
        assert!(Arc::ptr_eq(&one.chunks, &two.chunks));
        assert_eq!(one.chunks[1].as_ptr(), set.resources()[0].body.as_ptr());
    }

    #[test]
    fn step_lists_changed_added_and_removed() {
        let (old, new) = (set(&[("a", "1"), ("b", "1"), ("c", "1")]), set(&[("a", "1"), ("b", "2"), ("d", "1")]));
        let step = new.step_from(&old);
        assert_eq!(step.changed.iter().map(|r| &*r.name).collect::<Vec<_>>(), ["b", "d"]);
        assert_eq!(step.removed.iter().map(|n| &**n).collect::<Vec<_>>(), ["c"]);
        assert!(Arc::ptr_eq(&step, &new.step_from(&old)));
    }

    #[test]
    fn version_tells_sets_apart_by_name_and_content() {
        assert_eq!(set(&[("a", "1"), ("b", "2")]).version(), set(&[("b", "2"), ("a", "1")]).version());
        assert_ne!(set(&[("a", "1")]).version(), set(&[("b", "1")]).version());
        assert_ne!(set(&[("a", "1")]).version(), set(&[("a", "2")]).version());
        assert_ne!(set(&[]).version(), set(&[("a", "1")]).version());
    }

    #[test]
    fn fallback_answers_only_names_that_are_not_listed() {
        let set = set(&[("a", "1")]).with_fallback(|name| (name != "z").then(|| Resource::encoded(name, "?".into())));
        assert_eq!(set.get("a").unwrap().body, "1");
        assert_eq!(set.get("b").unwrap().body, "?");
        assert_eq!(set.get("z"), None);
    }
}
