//! Pins: objects that a client is served in another version than the current one. `quarantine` decides which; `views`
//! computes what a client with pins sees.

use std::collections::BTreeMap;

use model::config::{Key, Object};
use model::snapshot::Snapshot;

/// Objects that a client is served in another version.
pub type Pins = BTreeMap<Key, Pin>;

/// An object whose current version is kept from a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pin {
    /// The rejected version; `None` if the deletion was rejected.
    pub bad: Option<Object>,
    /// The version served instead; `None` to serve without the object.
    pub good: Option<Object>,
}

impl Pin {
    /// Whether the rejected version is the current one.
    pub(crate) fn holds_in(&self, key: &Key, world: &Snapshot) -> bool {
        match (&self.bad, world.objects.get(key)) {
            (Some(bad), Some(now)) => bad.means_the_same_as(now),
            (None, None) => true,
            _ => false,
        }
    }
}

/// The snapshot as a client with these pins sees it.
pub fn pinned(world: &Snapshot, pins: &Pins) -> Snapshot {
    world.with(pins.iter().map(|(key, pin)| (key.clone(), pin.good.clone())))
}
