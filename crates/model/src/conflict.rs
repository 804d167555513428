//! Conflict resolution between registries with a service of the same host name and namespace, and between config stores
//! with the same object. The outcome never depends on the order of arrival, so every replica agrees.

use crate::names::{Hostname, Str};
use crate::service::Registry;

/// How one conflict is resolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConflictPolicy {
    /// The first registry defines the service; endpoints of all registries serve it.
    #[default]
    Merge,
    /// Only the first registry serves it; when the service is removed there, the next registry does.
    Order,
    /// The first registry keeps the namespace; each other registry gets a namespace named after itself.
    Isolate,
    /// The service is not served until the conflict is resolved.
    Reject,
}

/// The conflict policies of the mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConflictSettings {
    /// The default, for hosts that no pattern in `hosts` covers.
    pub policy: ConflictPolicy,
    /// Host names or wildcards; the first match wins.
    pub hosts: Vec<(Hostname, ConflictPolicy)>,
    /// Names of registries or sources, highest precedence first.
    pub order: Vec<Str>,
    /// Config stores, highest precedence first.
    pub stores: Vec<Str>,
}

impl ConflictSettings {
    pub fn policy_of(&self, host: &Hostname) -> ConflictPolicy {
        self.hosts.iter().find(|(pattern, _)| host.is_subset_of(pattern)).map_or(self.policy, |(_, policy)| *policy)
    }

    /// Precedence of a source: its position in `order`, then the order of the `Registry` enum, then its name.
    pub fn rank<'a>(&self, source: &'a Str, registry: Registry) -> (usize, Registry, &'a Str) {
        let named = |name: &Str| name == source || **name == *registry.as_str();
        (self.order.iter().position(named).unwrap_or(self.order.len()), registry, source)
    }
}
