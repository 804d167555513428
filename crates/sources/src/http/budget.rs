//! What all answers to one client may take of memory at a time, half-read and decoded ones included. A server that
//! answers endlessly to many requests at once costs its own registry an error, and the process nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A body is copied once when it is whole, and there must be room for what it becomes: a byte of it counts as this many.
const PER_BODY_BYTE: usize = 4;
/// What a JSON object or list takes at least once it is decoded: the smallest is two bytes long.
const PER_CONTAINER: usize = 256;
/// What a further entry of an object or list takes once it is decoded.
const PER_ENTRY: usize = 48;

/// Memory for answers.
#[derive(Debug)]
pub(super) struct BodyBudget {
    limit: usize,
    used: AtomicUsize,
}

impl BodyBudget {
    /// Enough for bodies of this many bytes in all.
    pub(super) fn of_bodies(bytes: usize) -> Arc<BodyBudget> {
        Arc::new(BodyBudget { limit: bytes.saturating_mul(PER_BODY_BYTE), used: AtomicUsize::new(0) })
    }

    /// Bytes of bodies that fit in when nothing else is held.
    pub(super) fn bodies(&self) -> usize {
        self.limit / PER_BODY_BYTE
    }
}

/// What one answer has of the budget, until it is dropped.
#[derive(Debug, Default)]
pub struct BudgetShare {
    budget: Option<Arc<BodyBudget>>,
    held: usize,
}

impl BudgetShare {
    pub(super) fn new(budget: &Arc<BodyBudget>) -> BudgetShare {
        BudgetShare { budget: Some(budget.clone()), held: 0 }
    }

    /// Takes room for more bytes of a body; false where there is none.
    pub(super) fn read(&mut self, bytes: usize) -> bool {
        self.grow(bytes.saturating_mul(PER_BODY_BYTE))
    }

    /// Takes room for what a body becomes when it is decoded, to be called before that; false where there is none.
    pub(super) fn decode(&mut self, json: &[u8]) -> bool {
        let cost = |byte: &u8| match byte {
            b'{' | b'[' => PER_CONTAINER,
            b',' => PER_ENTRY,
            _ => 0,
        };
        self.grow(json.iter().map(cost).sum())
    }

    /// Gives back what a body took that is gone.
    pub(super) fn decoded(&mut self, bytes: usize) {
        let returned = bytes.saturating_mul(PER_BODY_BYTE).min(self.held);
        self.held -= returned;
        self.give(returned);
    }

    fn grow(&mut self, by: usize) -> bool {
        let Some(budget) = &self.budget else { return true };
        let fits = |used: usize| used.checked_add(by).filter(|sum| *sum <= budget.limit);
        let is_taken = budget.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        self.held += if is_taken { by } else { 0 };
        is_taken
    }

    fn give(&self, bytes: usize) {
        if let Some(budget) = &self.budget {
            budget.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.give(self.held);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::{BodyBudget, BudgetShare};

    #[test]
    fn what_is_dropped_or_decoded_is_given_back() {
        let budget = BodyBudget::of_bodies(1000);
        let (mut one, mut two) = (BudgetShare::new(&budget), BudgetShare::new(&budget));
        assert!(one.read(600) && two.read(400) && !two.read(1));
        drop(one);
        assert!(two.read(100) && two.decode(b"[{}]"));
        two.decoded(500);
        assert_eq!(budget.used.load(Ordering::Relaxed), 512);
        drop(two);
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn small_objects_cost_what_they_become() {
        let budget = BodyBudget::of_bodies(10_000);
        let many = format!("[{}{{}}]", "{},".repeat(1000));
        let mut share = BudgetShare::new(&budget);
        assert!(share.read(many.len()));
        assert!(!share.decode(many.as_bytes()), "three kilobytes that become half a megabyte");
    }
}
