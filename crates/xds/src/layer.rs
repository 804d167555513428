//! A layer: resources of one type that many clients share, ordered by name. A layer is immutable. The layer after a
//! change shares all unchanged resources with its predecessor, and the Step between two layers is computed once for
//! all streams, in time proportional to the difference.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, OnceLock};

use api::{Resource, TypeUrl, Version};
use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use parking_lot::{Mutex, MutexGuard};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::payload::{Payload, Protocol};

/// Steps cached per layer. Streams are one or two layers behind; more steps would only use memory.
const STEPS: usize = 4;

/// Names of resources, with their sum and the bytes of all of them. Equal sets are shared where they are that of a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NameSet {
    pub(crate) names: Arc<BTreeSet<Arc<str>>>,
    pub(crate) sum: Sum,
    pub(crate) bytes: usize,
}

/// Resources of one type, with their encoded form while it is in use.
#[derive(Default)]
pub struct Layer {
    resources: OrdMap<Arc<str>, Resource>,
    sum: Sum,
    /// The same over names alone, and the bytes of all names.
    name_sum: Sum,
    name_bytes: usize,
    names: OnceLock<Arc<BTreeSet<Arc<str>>>>,
    encoded: Mutex<Encoded>,
}

#[derive(Default)]
struct Encoded {
    whole: [Option<Payload>; 2],
    steps: Vec<(Sum, Arc<Step>)>,
}

/// The version of a set of resources: the sum of the hashes of all names and versions. It does not depend on the
/// order, and a change of one resource updates it without reading the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Sum(u128);

impl Sum {
    /// The summand of one resource.
    pub(crate) fn of(name: &str, version: Version) -> Sum {
        let mut hash = Xxh3::new();
        hash.update(name.as_bytes());
        hash.update(&version.to_bytes());
        Sum(hash.digest128())
    }

    fn of_resource(resource: &Resource) -> Sum {
        Sum::of(&resource.name, resource.version)
    }

    /// The part of one name, in a sum over names alone.
    pub(crate) fn of_name(name: &str) -> Sum {
        Sum(xxh3_128(name.as_bytes()))
    }

    pub(crate) fn plus(self, other: Sum) -> Sum {
        Sum(self.0.wrapping_add(other.0))
    }

    pub(crate) fn minus(self, other: Sum) -> Sum {
        Sum(self.0.wrapping_sub(other.0))
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl Layer {
    /// A layer of these resources. If a name occurs twice, the first resource is used.
    pub fn new(resources: impl IntoIterator<Item = Resource>) -> Layer {
        let mut sorted: Vec<Resource> = resources.into_iter().collect();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        sorted.dedup_by(|later, first| later.name == first.name);
        let mut layer = Layer::default();
        for resource in &sorted {
            layer.sum = layer.sum.plus(Sum::of_resource(resource));
            layer.add_name(&resource.name);
        }
        layer.resources = sorted.into_iter().map(|resource| (Arc::clone(&resource.name), resource)).collect();
        layer
    }

    /// The layer with some resources replaced, added, or removed (`None`).
    #[must_use]
    pub fn with(&self, changes: impl IntoIterator<Item = (Arc<str>, Option<Resource>)>) -> Layer {
        let Self { resources, sum, name_sum, name_bytes, .. } = self;
        let mut layer = Layer {
            resources: resources.clone(),
            sum: *sum,
            name_sum: *name_sum,
            name_bytes: *name_bytes,
            ..Layer::default()
        };
        for (name, change) in changes {
            match change {
                Some(resource) => layer.insert(name, resource),
                None => layer.remove(&name),
            }
        }
        if layer.name_sum == self.name_sum {
            layer.names = self.names.clone();
        }
        layer
    }

    fn insert(&mut self, name: Arc<str>, resource: Resource) {
        match self.resources.get(&name) {
            Some(held) if held.version == resource.version => return,
            Some(held) => self.sum = self.sum.minus(Sum::of_resource(held)),
            None => self.add_name(&name),
        }
        self.sum = self.sum.plus(Sum::of_resource(&resource));
        self.resources.insert(name, resource);
    }

    fn remove(&mut self, name: &str) {
        if let Some(held) = self.resources.remove(name) {
            self.sum = self.sum.minus(Sum::of_resource(&held));
            self.name_sum = self.name_sum.minus(Sum::of_name(name));
            self.name_bytes -= name.len();
        }
    }

    fn add_name(&mut self, name: &str) {
        self.name_sum = self.name_sum.plus(Sum::of_name(name));
        self.name_bytes += name.len();
    }

    /// All names. Streams that subscribe to all of them share the set.
    pub(crate) fn names(&self) -> NameSet {
        let names = self.names.get_or_init(|| Arc::new(self.resources.keys().cloned().collect()));
        NameSet { names: Arc::clone(names), sum: self.name_sum, bytes: self.name_bytes }
    }

    /// Whether these are all names, given their number and sum.
    pub(crate) fn has_names(&self, count: usize, sum: Sum) -> bool {
        self.len() == count && self.name_sum == sum
    }

    pub fn get(&self, name: &str) -> Option<&Resource> {
        self.resources.get(name)
    }

    /// The resources in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Resource> {
        self.resources.values()
    }

    pub fn len(&self) -> usize {
        self.resources.len()
    }

    pub fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }

    /// Whether another layer has the same resources.
    pub fn is_same(&self, other: &Layer) -> bool {
        self.sum == other.sum
    }

    /// Drops the encoded form. It is computed again when a stream needs all of the layer.
    pub fn free_encoded(&self) {
        let encoded = std::mem::take(&mut *self.lock());
        // Dropped after the lock is released.
        drop(encoded);
    }

    pub(crate) fn sum(&self) -> Sum {
        self.sum
    }

    /// Every resource, encoded once for all streams.
    pub(crate) fn whole(&self, content: &TypeUrl, protocol: Protocol) -> Payload {
        let mut encoded = self.lock();
        let whole = &mut encoded.whole[protocol as usize];
        whole.get_or_insert_with(|| Payload::of(content, self.iter(), protocol)).clone()
    }

    /// The changes for a client that has `old`, computed and encoded once for all streams.
    pub(crate) fn step_from(&self, old: &Layer) -> Arc<Step> {
        let mut encoded = self.lock();
        if let Some((_, step)) = encoded.steps.iter().find(|(from, _)| *from == old.sum) {
            return Arc::clone(step);
        }
        let step = Arc::new(Step::between(&old.resources, &self.resources));
        if encoded.steps.len() == STEPS {
            encoded.steps.remove(0);
        }
        encoded.steps.push((old.sum, Arc::clone(&step)));
        step
    }

    fn lock(&self) -> MutexGuard<'_, Encoded> {
        self.encoded.lock()
    }
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The difference between two layers of one type.
#[derive(Default)]
pub(crate) struct Step {
    pub(crate) changed: Vec<Resource>,
    pub(crate) removed: Vec<Arc<str>>,
    payload: Mutex<[Option<Payload>; 2]>,
}

impl Step {
    fn between(old: &OrdMap<Arc<str>, Resource>, new: &OrdMap<Arc<str>, Resource>) -> Step {
        let mut step = Step::default();
        for item in old.diff(new) {
            match item {
                DiffItem::Add(_, resource) | DiffItem::Update { new: (_, resource), .. } => {
                    step.changed.push(resource.clone());
                }
                DiffItem::Remove(name, _) => step.removed.push(Arc::clone(name)),
            }
        }
        step
    }

    pub(crate) fn payload(&self, content: &TypeUrl, protocol: Protocol) -> Payload {
        let mut payload = self.payload.lock();
        payload[protocol as usize].get_or_insert_with(|| Payload::of(content, &self.changed, protocol)).clone()
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").field("changed", &self.changed).field("removed", &self.removed).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop};
    use proptest::{prop_assert_eq, proptest};
    use testkit::properties::{self, repeat};

    use super::{Arc, Layer, Resource};

    fn resource(name: &str, body: &str) -> Resource {
        Resource::encoded(name, body.as_bytes().to_vec())
    }

    fn layer(resources: &[(&str, &str)]) -> Layer {
        Layer::new(resources.iter().map(|(name, body)| resource(name, body)))
    }

    #[test]
    fn step_lists_changed_added_and_removed() {
        let old = layer(&[("a", "1"), ("b", "1"), ("c", "1")]);
        let new = old.with([
            ("b".into(), Some(resource("b", "2"))),
            ("c".into(), None),
            ("d".into(), Some(resource("d", "1"))),
            ("a".into(), Some(resource("a", "1"))),
        ]);
        let step = new.step_from(&old);
        assert_eq!(step.changed.iter().map(|r| &*r.name).collect::<Vec<_>>(), ["b", "d"]);
        assert_eq!(step.removed.iter().map(|n| &**n).collect::<Vec<_>>(), ["c"]);
        assert!(Arc::ptr_eq(&step, &new.step_from(&old)));
    }

    #[test]
    fn first_of_two_resources_with_one_name_stays() {
        assert_eq!(layer(&[("a", "1"), ("a", "2")]).get("a").unwrap().body.joined(), "1");
    }

    proptest! {
        #![proptest_config(properties::config(256))]

        /// A layer after many changes equals a layer of the final resources, and the step from any earlier layer
        /// leads to it.
        #[test]
        fn changed_layer_equals_one_made_at_once(
            edits in prop::collection::vec((0u8..40, prop::option::of(any::<u8>())), 0..60),
            cut in 0usize..60,
        ) {
            let mut model = std::collections::BTreeMap::new();
            let (mut layer, mut earlier) = (Layer::default(), Layer::default());
            for (at, (name, body)) in edits.into_iter().enumerate() {
                let name = format!("n{name}");
                let change = body.map(|body| resource(&name, &body.to_string()));
                layer = layer.with([(Arc::from(name.as_str()), change.clone())]);
                match change {
                    Some(resource) => _ = model.insert(name, resource),
                    None => _ = model.remove(&name),
                }
                if at == cut {
                    earlier = layer.with([]);
                }
            }
            let seed = repeat(&properties::config(256));
            let expected: Vec<Resource> = model.values().cloned().collect();
            prop_assert_eq!(layer.iter().cloned().collect::<Vec<_>>(), expected.clone(), "{}", &seed);
            let fresh = Layer::new(model.into_values());
            prop_assert_eq!(layer.sum(), fresh.sum(), "{}", &seed);
            prop_assert_eq!(layer.names(), fresh.names(), "{}", &seed);
            let step = layer.step_from(&earlier);
            let changes = step.changed.iter().map(|r| (Arc::clone(&r.name), Some(r.clone())));
            let reached = earlier.with(changes.chain(step.removed.iter().map(|name| (Arc::clone(name), None))));
            prop_assert_eq!(reached.iter().cloned().collect::<Vec<_>>(), expected, "{}", &seed);
        }
    }
}
