//! All resources of one type that a class of clients may see: layers, and a fallback for names that are not listed.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use api::{Resource, TypeUrl, Version};

use crate::layer::{Layer, NameSet, Step, Sum};
use crate::payload::{Payload, Protocol};

type Fallback = Arc<dyn Fn(&str) -> Option<Resource> + Send + Sync>;

/// The resources of one type.
#[derive(Clone)]
pub struct ResourceSet {
    kind: TypeUrl,
    /// The type of the messages, if it is not the requested one.
    content: Option<TypeUrl>,
    /// Layers with disjoint names.
    layers: Box<[Arc<Layer>]>,
    fallback: Option<Fallback>,
    withheld: BTreeSet<Arc<str>>,
}

impl ResourceSet {
    /// The set of these resources. If a name occurs twice, the first resource is used.
    pub fn new(kind: TypeUrl, resources: impl IntoIterator<Item = Resource>) -> Self {
        Self::of_layers(kind, vec![Arc::new(Layer::new(resources))])
    }

    /// The resources of all layers. If two layers have the same name, the earlier layer is used.
    pub fn of_layers(kind: TypeUrl, layers: Vec<Arc<Layer>>) -> Self {
        let mut disjoint: Vec<Arc<Layer>> = Vec::with_capacity(layers.len());
        for layer in layers {
            let is_hidden = |name: &str| disjoint.iter().any(|earlier| earlier.get(name).is_some());
            // The first layer has all resources of the mesh; later layers are small.
            let names = if disjoint.is_empty() { None } else { Some(layer.iter().map(|r| &r.name)) };
            let hidden: Vec<_> = names.into_iter().flatten().filter(|name| is_hidden(name)).cloned().collect();
            let is_disjoint = hidden.is_empty();
            let without = || Arc::new(layer.with(hidden.into_iter().map(|name| (name, None))));
            disjoint.push(if is_disjoint { layer } else { without() });
        }
        Self { kind, content: None, layers: disjoint.into(), fallback: None, withheld: BTreeSet::new() }
    }

    /// The set with a fallback for names that are requested but not listed. Load assignments should have one, because
    /// Envoy waits for every load assignment that it requests.
    pub fn with_fallback(mut self, answer: impl Fn(&str) -> Option<Resource> + Send + Sync + 'static) -> Self {
        self.fallback = Some(Arc::new(answer));
        self
    }

    /// The set with withheld names: delta clients get no message about them and keep what they have.
    /// A SotW listing cannot express that and removes them.
    pub fn with_withheld(mut self, names: impl IntoIterator<Item = Arc<str>>) -> Self {
        self.withheld.extend(names);
        self
    }

    /// The set with messages of another type than the requested one, as configuration over xDS has it.
    pub fn with_content(mut self, content: TypeUrl) -> Self {
        self.content = Some(content);
        self
    }

    /// The set with listed resources replaced or removed (`None`). Names that are not listed are ignored.
    #[must_use]
    pub fn with_replaced(&self, changes: impl IntoIterator<Item = (Arc<str>, Option<Resource>)>) -> Self {
        let mut layers = self.layers.clone();
        for (name, change) in changes {
            if let Some(layer) = layers.iter_mut().find(|layer| layer.get(&name).is_some()) {
                *layer = Arc::new(layer.with([(name, change)]));
            }
        }
        Self { layers, ..self.clone() }
    }

    /// The type of the messages, as in each `Any`.
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
        Version::of(&self.sum().to_bytes())
    }

    pub(crate) fn sum(&self) -> Sum {
        self.layers.iter().fold(Sum::default(), |sum, layer| sum.plus(layer.sum()))
    }

    /// The resources in the order of their names.
    pub fn resources(&self) -> impl Iterator<Item = &Resource> {
        let mut all: Vec<&Resource> = self.layers.iter().flat_map(|layer| layer.iter()).collect();
        if self.layers.len() > 1 {
            // Each layer is sorted, which makes this sort cheap.
            all.sort_by(|a, b| a.name.cmp(&b.name));
        }
        all.into_iter()
    }

    /// All listed names, if one layer has them and these are as many with this sum.
    pub(crate) fn names_equal_to(&self, count: usize, sum: Sum) -> Option<NameSet> {
        let [layer] = &*self.layers else { return None };
        layer.has_names(count, sum).then(|| layer.names())
    }

    /// Whether a shared set of names is that of all listed resources.
    pub(crate) fn lists_exactly(&self, names: &Arc<BTreeSet<Arc<str>>>) -> bool {
        let [layer] = &*self.layers else { return false };
        !names.is_empty() && layer.len() == names.len() && Arc::ptr_eq(&layer.names().names, names)
    }

    pub fn len(&self) -> usize {
        self.layers.iter().map(|layer| layer.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The listed resource of this name.
    pub fn listed(&self, name: &str) -> Option<&Resource> {
        self.layers.iter().find_map(|layer| layer.get(name))
    }

    /// The resource for a client that requests this name: the listed one, else the fallback's.
    pub fn get(&self, name: &str) -> Option<Resource> {
        self.listed(name).cloned().or_else(|| self.fallback.as_ref()?(name))
    }

    /// Every listed resource, encoded once for all streams.
    pub(crate) fn whole(&self, protocol: Protocol) -> Payload {
        Payload::joined(self.layers.iter().map(|layer| layer.whole(self.content(), protocol)))
    }

    /// The changes for a client that has `old`.
    pub(crate) fn step_from(&self, old: &Self) -> SetStep {
        if self.layers.len() == old.layers.len() {
            let pairs = self.layers.iter().zip(&old.layers).filter(|(new, old)| !Arc::ptr_eq(new, old));
            return SetStep(pairs.map(|(new, old)| new.step_from(old)).collect());
        }
        let merged = |set: &Self| Layer::new(set.resources().cloned());
        SetStep(vec![merged(self).step_from(&merged(old))])
    }
}

impl fmt::Debug for ResourceSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResourceSet").field("kind", &self.kind).field("layers", &self.layers).finish()
    }
}

/// The steps of all changed layers of a set. A name that moved from one layer to another is in both lists.
#[derive(Debug, Default)]
pub(crate) struct SetStep(Vec<Arc<Step>>);

impl SetStep {
    /// Whether both sets have the same names.
    pub(crate) fn replaces_only(&self, old: &ResourceSet, new: &ResourceSet) -> bool {
        old.len() == new.len() && self.removed().next().is_none()
    }

    /// The changed resources in the order of their names.
    pub(crate) fn changed_in_order(&self) -> Vec<Resource> {
        let mut changed: Vec<Resource> = self.changed().cloned().collect();
        changed.sort_by(|a, b| a.name.cmp(&b.name));
        changed
    }

    pub(crate) fn changed(&self) -> impl Iterator<Item = &Resource> {
        self.0.iter().flat_map(|step| &step.changed)
    }

    pub(crate) fn removed(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.iter().flat_map(|step| &step.removed)
    }

    /// The shared payload of all changed resources in the order of names, if `sent` is exactly those.
    pub(crate) fn payload_of(&self, sent: &[Resource], content: &TypeUrl, protocol: Protocol) -> Option<Payload> {
        let mut changed: Vec<&Resource> = self.changed().collect();
        if changed.len() != sent.len() {
            return None;
        }
        changed.sort_by(|a, b| a.name.cmp(&b.name));
        let is_same = changed.iter().zip(sent).all(|(changed, sent)| changed.name == sent.name);
        is_same.then(|| Payload::joined(self.0.iter().map(|step| step.payload(content, protocol))))
    }
}

#[cfg(test)]
mod tests {
    use api::envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse};
    use prost::Message;

    use super::{Arc, Layer, Payload, Protocol, Resource, ResourceSet, TypeUrl};
    use crate::payload::LARGE;

    fn set(resources: &[(&str, &str)]) -> ResourceSet {
        let resources = resources.iter().map(|(name, body)| Resource::encoded(*name, body.as_bytes().to_vec()));
        ResourceSet::new(TypeUrl::CLUSTER, resources)
    }

    fn joined(payload: &Payload) -> Vec<u8> {
        payload.chunks.concat()
    }

    #[test]
    fn payload_is_what_a_protobuf_encoder_would_write() {
        let large = "x".repeat(LARGE);
        let set = set(&[("b", "two"), ("a", "one"), ("c", &large)]);
        let sotw = DiscoveryResponse::decode(&*joined(&set.whole(Protocol::Sotw))).unwrap();
        let bodies: Vec<_> = sotw.resources.iter().map(|any| any.value.as_slice()).collect();
        assert_eq!(bodies, [b"one".as_slice(), b"two", large.as_bytes()]);
        assert!(sotw.resources.iter().all(|any| any.type_url == TypeUrl::CLUSTER.as_str()));

        let delta = DeltaDiscoveryResponse::decode(&*joined(&set.whole(Protocol::Delta))).unwrap();
        let names: Vec<_> = delta.resources.iter().map(|r| (r.name.as_str(), r.version.clone())).collect();
        let expected: Vec<_> = set.resources().map(|r| (&*r.name, r.version.to_string())).collect();
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
        let set = set(&[("a", &"x".repeat(LARGE))]);
        let (one, two) = (set.whole(Protocol::Sotw), set.whole(Protocol::Sotw));
        assert_eq!(one.chunks[0].as_ptr(), two.chunks[0].as_ptr());
        assert_eq!(one.chunks[1].as_ptr(), set.listed("a").unwrap().body.pieces()[0].as_ptr());
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
        let set =
            set(&[("a", "1")]).with_fallback(|name| (name != "z").then(|| Resource::encoded(name, b"?".to_vec())));
        assert_eq!(set.get("a").unwrap().body.joined(), "1");
        assert_eq!(set.get("b").unwrap().body.joined(), "?");
        assert_eq!(set.get("z"), None);
    }

    #[test]
    fn layers_are_served_as_one_set() {
        let layer = |resources: &[(&str, &str)]| {
            Arc::new(Layer::new(
                resources.iter().map(|(name, body)| Resource::encoded(*name, body.as_bytes().to_vec())),
            ))
        };
        let (shared, own) = (layer(&[("b", "1"), ("d", "1")]), layer(&[("a", "1"), ("b", "own"), ("c", "1")]));
        let old = ResourceSet::of_layers(TypeUrl::CLUSTER, vec![shared.clone(), own.clone()]);
        assert_eq!(old.resources().map(|r| &*r.name).collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        assert_eq!(old.get("b").unwrap().body.joined(), "1", "the first layer has precedence");
        assert_eq!(old.version(), set(&[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")]).version());
        let new = ResourceSet::of_layers(TypeUrl::CLUSTER, vec![shared, layer(&[("a", "1"), ("c", "2")])]);
        let step = new.step_from(&old);
        assert_eq!(step.changed().map(|r| &*r.name).collect::<Vec<_>>(), ["c"]);
        assert_eq!(step.removed().count(), 0);
    }

    #[test]
    fn replaced_resources_leave_the_others_shared() {
        let one = set(&[("a", "1"), ("b", "1")]);
        let two = one.with_replaced([("b".into(), None), ("c".into(), Some(Resource::encoded("c", b"1".to_vec())))]);
        assert_eq!(two.resources().map(|r| &*r.name).collect::<Vec<_>>(), ["a"]);
        assert_eq!(two.len(), 1);
    }
}
