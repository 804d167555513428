//! Rendered resources by the fingerprint of their plan: each distinct resource is encoded once for all
//! clients. What no client holds any more is dropped now and then.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use api::Resource;

/// Sweeping starts at this size and again whenever the store has doubled since.
const SWEEP_FROM: usize = 4096;

/// Every rendering that some client holds or held a moment ago.
#[derive(Debug, Default)]
pub struct Renderings {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    resources: HashMap<u128, Resource>,
    sweep_at: usize,
}

impl Renderings {
    /// The rendering kept under this fingerprint, made now if there is none.
    pub fn get(&self, fingerprint: u128, render: impl FnOnce() -> Resource) -> Resource {
        if let Some(found) = self.lock().resources.get(&fingerprint) {
            return found.clone();
        }
        // Rendered outside the lock: two clients may render the same thing, and one rendering stays.
        let made = render();
        let mut kept = self.lock();
        if kept.resources.len() >= kept.sweep_at.max(SWEEP_FROM) {
            kept.resources.retain(|_, resource| !resource.body.is_unique());
            kept.sweep_at = kept.resources.len() * 2;
        }
        kept.resources.entry(fingerprint).or_insert(made).clone()
    }

    /// How many renderings are kept.
    pub fn len(&self) -> usize {
        self.lock().resources.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
