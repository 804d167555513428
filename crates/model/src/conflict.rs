//! What to do when several registries have a service of one host name in one namespace, or several config stores one
//! object. The answer depends on the registries and stores alone, never on who came first, so every replica gives the same.

use crate::names::{Hostname, Str};
use crate::service::Registry;

/// One way to settle a conflict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConflictPolicy {
    /// The first registry describes the service, endpoints of all of them serve it.
    #[default]
    Merge,
    /// The first registry alone serves it; when it has the service no more, the next one does.
    Order,
    /// The first registry keeps the namespace, each other one gets a namespace of its own name.
    Isolate,
    /// Nobody serves it until the conflict is gone.
    Reject,
}

/// The policies of a mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConflictSettings {
    /// For hosts that no pattern below covers.
    pub policy: ConflictPolicy,
    /// Host names or wildcards; the first that covers a host counts.
    pub hosts: Vec<(Hostname, ConflictPolicy)>,
    /// Names of registries or of single sources, the first before the others.
    pub order: Vec<Str>,
    /// Config stores as they were given: of an object that several have, that of the first counts.
    pub stores: Vec<Str>,
}

impl ConflictSettings {
    pub fn policy_of(&self, host: &Hostname) -> ConflictPolicy {
        self.hosts.iter().find(|(pattern, _)| host.is_subset_of(pattern)).map_or(self.policy, |(_, policy)| *policy)
    }

    /// Where a source stands among others: as listed, then in the order of the list of registries, then by name.
    pub fn rank<'a>(&self, source: &'a Str, registry: Registry) -> (usize, Registry, &'a Str) {
        let named = |name: &Str| name == source || **name == *registry.as_str();
        (self.order.iter().position(named).unwrap_or(self.order.len()), registry, source)
    }
}
