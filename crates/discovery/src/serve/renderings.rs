//! Rendered resources by the fingerprint of their plan: each distinct resource is encoded once for all clients.
//! Resources that no client uses any more are dropped soon.

use std::collections::HashMap;

use api::Resource;
use parking_lot::{Mutex, MutexGuard};
use translate::Recipe;

/// Minimum bytes rendered between two sweeps. An unused resource survives a sweep if it was used since the previous
/// one: parts of a route table are often needed again after the next change.
const SWEEP_BYTES: usize = 4 << 20;
/// The same as a fraction of the bytes left by the last sweep, so that sweeps of a large cache are rare.
const SWEEP_PART: usize = 4;
/// Memory of an entry in addition to its bytes.
const OVERHEAD: usize = 128;

/// The cache of renderings.
#[derive(Debug, Default)]
pub struct Renderings {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    entries: HashMap<u128, Entry>,
    /// Number of sweeps so far.
    sweeps: u64,
    /// Bytes left by the last sweep.
    left: usize,
    /// Bytes added since.
    added: usize,
}

#[derive(Debug)]
struct Entry {
    resource: Resource,
    /// Number of sweeps at its last use.
    used: u64,
}

impl Renderings {
    /// The cached rendering with this fingerprint.
    pub fn find(&self, fingerprint: u128) -> Option<Resource> {
        self.lock().find(fingerprint)
    }

    /// The rendering with this fingerprint, rendered unless it is cached.
    pub fn get(&self, fingerprint: u128, render: impl FnOnce() -> Resource) -> Resource {
        if let Some(found) = self.lock().find(fingerprint) {
            return found;
        }
        // Rendered outside the lock: two clients may render the same resource, and one result is kept.
        let made = render();
        let mut kept = self.lock();
        if kept.added > SWEEP_BYTES.max(kept.left / SWEEP_PART) {
            kept.sweep();
        }
        kept.add(fingerprint, made)
    }

    /// The rendering of a recipe. Secrets are not cached.
    pub fn rendered(&self, recipe: &Recipe) -> Resource {
        match recipe.fingerprint {
            Some(fingerprint) => self.get(fingerprint, || recipe.render()),
            None => recipe.render(),
        }
    }

    /// Drops renderings that no client uses, unless they were used since the last sweep.
    pub fn sweep(&self) {
        self.lock().sweep();
    }

    /// Drops everything: no client is connected.
    pub fn clear(&self) {
        let kept = std::mem::take(&mut *self.lock());
        // Dropped after the lock is released.
        drop(kept);
    }

    /// Number of cached renderings.
    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock()
    }
}

impl Kept {
    fn find(&mut self, fingerprint: u128) -> Option<Resource> {
        let entry = self.entries.get_mut(&fingerprint)?;
        entry.used = self.sweeps;
        Some(entry.resource.clone())
    }

    fn add(&mut self, fingerprint: u128, made: Resource) -> Resource {
        self.added += weight(&made);
        let entry = Entry { resource: made, used: self.sweeps };
        self.entries.entry(fingerprint).or_insert(entry).resource.clone()
    }

    fn sweep(&mut self) {
        let now = self.sweeps;
        self.entries.retain(|_, entry| entry.used == now || !entry.resource.body.is_unique());
        if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to_fit();
        }
        self.sweeps += 1;
        self.left = self.entries.values().map(|entry| weight(&entry.resource)).sum();
        self.added = 0;
    }
}

fn weight(resource: &Resource) -> usize {
    resource.body.own_bytes() + resource.name.len() + OVERHEAD
}

#[cfg(test)]
mod tests {
    use api::Resource;

    use super::{Renderings, SWEEP_BYTES};

    const LARGE: usize = 1 << 18;

    fn large() -> Resource {
        Resource::encoded("table", vec![7; LARGE])
    }

    #[test]
    fn hole_03_renderings_that_no_client_holds_are_dropped() {
        let renderings = Renderings::default();
        let held = renderings.get(0, large);
        for edit in 1..200 {
            renderings.get(edit, large);
            assert!(renderings.len() <= 3 * SWEEP_BYTES / LARGE, "{} after {edit} edits", renderings.len());
        }
        let again = renderings.get(0, || panic!("it is held"));
        assert_eq!(again.body.pieces()[0].as_ptr(), held.body.pieces()[0].as_ptr());
    }

    #[test]
    fn what_is_used_survives_one_sweep() {
        let renderings = Renderings::default();
        renderings.get(1, large);
        renderings.sweep();
        renderings.get(1, || panic!("it was used before the sweep"));
        renderings.sweep();
        renderings.sweep();
        assert!(renderings.is_empty());
    }
}
