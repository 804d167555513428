//! Recorded reads: the inputs that a computation used. Translation reads a client and the mesh only through a `View`,
//! whose fields are `Tracked`, so all inputs of a result are known, and clients that agree in them share the result.
//! No list of what a result depends on is kept by hand; the class of a client is (`serve/class.rs`), and is checked against
//! these reads.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::names::{ServiceKey, Str};
use parking_lot::Mutex;

/// An input as a whole: a field of the proxy, a part of its view, or a section of the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Input {
    Kind,
    Id,
    Ips,
    /// Which address families the proxy has.
    Families,
    Namespace,
    Domain,
    Cluster,
    ServiceCluster,
    Network,
    Locality,
    /// All labels. Reads of single labels and selectors are recorded separately.
    Labels,
    Interception,
    PodPorts,
    ProxyConfig,
    Extensions,
    EnvoyVersion,
    Sidecar,
    OutboundPolicy,
    Egress,
    Services,
    Rules,
    Inbound,
    Gateway,
    Patches,
    Policy,
    Keys,
    Gateways,
    ExtensionObjects,
    Credentials,
    MeshServices,
    MeshRouting,
}

impl Input {
    pub(crate) const ALL: [Input; 31] = [
        Input::Kind,
        Input::Id,
        Input::Ips,
        Input::Families,
        Input::Namespace,
        Input::Domain,
        Input::Cluster,
        Input::ServiceCluster,
        Input::Network,
        Input::Locality,
        Input::Labels,
        Input::Interception,
        Input::PodPorts,
        Input::ProxyConfig,
        Input::Extensions,
        Input::EnvoyVersion,
        Input::Sidecar,
        Input::OutboundPolicy,
        Input::Egress,
        Input::Services,
        Input::Rules,
        Input::Inbound,
        Input::Gateway,
        Input::Patches,
        Input::Policy,
        Input::Keys,
        Input::Gateways,
        Input::ExtensionObjects,
        Input::Credentials,
        Input::MeshServices,
        Input::MeshRouting,
    ];

    fn bit(self) -> u64 {
        1 << self as u64
    }
}

/// The labels of a selector.
pub type Selector = BTreeMap<String, String>;

/// The inputs that a computation read, except endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadSet {
    inputs: u64,
    pub(crate) metadata: BTreeSet<Str>,
    pub(crate) labels: BTreeSet<Str>,
    pub(crate) selectors: BTreeSet<Selector>,
}

impl ReadSet {
    pub fn contains(&self, input: Input) -> bool {
        self.inputs & input.bit() != 0
    }

    /// Whether a single metadata key was read.
    pub fn contains_metadata(&self, key: &str) -> bool {
        self.metadata.contains(key)
    }

    /// Whether this set contains all inputs of another.
    pub fn covers(&self, other: &ReadSet) -> bool {
        let has_labels = |labels: &BTreeSet<Str>| labels.is_subset(&self.labels) || self.contains(Input::Labels);
        other.inputs & !self.inputs == 0
            && other.metadata.is_subset(&self.metadata)
            && has_labels(&other.labels)
            && (other.selectors.is_subset(&self.selectors) || self.contains(Input::Labels))
    }

    pub(crate) fn inputs(&self) -> impl Iterator<Item = Input> + '_ {
        Input::ALL.into_iter().filter(|input| self.contains(*input))
    }
}

/// The part of a service's endpoints that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aspect {
    /// All endpoints with all fields.
    All,
    /// Their identities only.
    Identities,
}

/// Endpoints that a computation read, each with the fingerprint of the value.
pub type EndpointReads = BTreeMap<(ServiceKey, Aspect), u128>;

/// The recorder of one computation.
#[derive(Debug, Default)]
pub struct Reads {
    inputs: AtomicU64,
    keyed: Mutex<Keyed>,
}

#[derive(Debug, Default)]
struct Keyed {
    set: ReadSet,
    endpoints: EndpointReads,
}

impl Reads {
    pub(crate) fn note(&self, input: Input) {
        if self.inputs.load(Ordering::Relaxed) & input.bit() == 0 {
            self.inputs.fetch_or(input.bit(), Ordering::Relaxed);
        }
    }

    pub(crate) fn note_metadata(&self, key: &str) {
        let mut keyed = self.keyed.lock();
        if !keyed.set.metadata.contains(key) {
            keyed.set.metadata.insert(key.into());
        }
    }

    pub(crate) fn note_label(&self, key: &str) {
        let mut keyed = self.keyed.lock();
        if !keyed.set.labels.contains(key) {
            keyed.set.labels.insert(key.into());
        }
    }

    pub(crate) fn note_selector(&self, selector: &Selector) {
        let mut keyed = self.keyed.lock();
        if !keyed.set.selectors.contains(selector) {
            keyed.set.selectors.insert(selector.clone());
        }
    }

    pub(crate) fn note_endpoints(&self, key: ServiceKey, aspect: Aspect, found: u128) {
        self.keyed.lock().endpoints.insert((key, aspect), found);
    }

    /// Everything that was read so far, except endpoints.
    pub fn set(&self) -> ReadSet {
        ReadSet { inputs: self.inputs.load(Ordering::Relaxed), ..self.keyed.lock().set.clone() }
    }

    /// The endpoints that were read since the last call.
    pub fn take_endpoints(&self) -> EndpointReads {
        std::mem::take(&mut self.keyed.lock().endpoints)
    }
}

/// A value whose reads are recorded.
#[derive(Clone)]
pub struct Tracked<T> {
    value: T,
    input: Input,
    reads: Arc<Reads>,
}

impl<T> Tracked<T> {
    pub(crate) fn new(value: T, input: Input, reads: &Arc<Reads>) -> Tracked<T> {
        Tracked { value, input, reads: reads.clone() }
    }

    /// A value without a recorder, for tests.
    pub fn unrecorded(value: T) -> Tracked<T> {
        Tracked { value, input: Input::Id, reads: Arc::default() }
    }

    /// The value, without recording the read: only to compare addresses.
    pub(crate) fn peek(&self) -> &T {
        &self.value
    }

    pub(crate) fn recorded_by(&self, reads: &Arc<Reads>) -> Tracked<T>
    where
        T: Clone,
    {
        Tracked { value: self.value.clone(), input: self.input, reads: reads.clone() }
    }
}

impl<T> Deref for Tracked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.reads.note(self.input);
        &self.value
    }
}

impl<T: PartialEq<U>, U: ?Sized> PartialEq<U> for Tracked<T> {
    fn eq(&self, other: &U) -> bool {
        **self == *other
    }
}

impl<T: fmt::Debug> fmt::Debug for Tracked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::{Arc, Input, Reads, Tracked};

    #[test]
    fn every_input_has_its_own_bit() {
        for (index, input) in Input::ALL.into_iter().enumerate() {
            assert_eq!(input.bit(), 1 << index);
        }
    }

    #[test]
    fn only_what_is_read_is_recorded() {
        let reads = Arc::new(Reads::default());
        let (id, domain) = (Tracked::new(7, Input::Id, &reads), Tracked::new(8, Input::Domain, &reads));
        assert_eq!(reads.set().inputs().count(), 0);
        assert!(id == 7 && *id.peek() == 7 && *domain.peek() == 8);
        assert_eq!(reads.set().inputs().collect::<Vec<_>>(), [Input::Id]);
    }
}
