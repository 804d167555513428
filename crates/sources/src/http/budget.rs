//! The memory budget of all response bodies of one client, partly read and decoded ones included. A server that sends
//! endless responses to many requests causes errors for that registry only.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Each byte of a body counts as this many: a complete body is copied once, and its decoded value needs room too.
const PER_BODY_BYTE: usize = 4;
/// Minimum memory of a decoded JSON object or list; the shortest is two bytes of text.
const PER_CONTAINER: usize = 256;
/// Memory of one more entry of a decoded object or list.
const PER_ENTRY: usize = 48;

/// Memory for response bodies.
#[derive(Debug)]
pub(super) struct BodyBudget {
    limit: usize,
    used: AtomicUsize,
}

impl BodyBudget {
    /// A budget for bodies of this many bytes in total.
    pub(super) fn of_bodies(bytes: usize) -> Arc<BodyBudget> {
        Arc::new(BodyBudget { limit: bytes.saturating_mul(PER_BODY_BYTE), used: AtomicUsize::new(0) })
    }

    /// Bytes of bodies that fit in an unused budget.
    pub(super) fn bodies(&self) -> usize {
        self.limit / PER_BODY_BYTE
    }
}

/// The part of the budget that one response uses. Dropping it releases that part.
#[derive(Debug, Default)]
pub struct BudgetShare {
    budget: Option<Arc<BodyBudget>>,
    held: usize,
}

impl BudgetShare {
    pub(super) fn new(budget: &Arc<BodyBudget>) -> BudgetShare {
        BudgetShare { budget: Some(budget.clone()), held: 0 }
    }

    /// Reserves memory for more bytes of a body. Returns false where the budget is exhausted.
    pub(super) fn reserve_body(&mut self, bytes: usize) -> bool {
        self.grow(bytes.saturating_mul(PER_BODY_BYTE))
    }

    /// Reserves memory for the decoded value of a body, before decoding. Returns false where the budget is exhausted.
    pub(super) fn reserve_decoded(&mut self, json: &[u8]) -> bool {
        let cost = |byte: &u8| match byte {
            b'{' | b'[' => PER_CONTAINER,
            b',' => PER_ENTRY,
            _ => 0,
        };
        self.grow(json.iter().map(cost).sum())
    }

    /// Releases the memory of a body that was dropped.
    pub(super) fn release_body(&mut self, bytes: usize) {
        let returned = bytes.saturating_mul(PER_BODY_BYTE).min(self.held);
        self.held -= returned;
        self.release(returned);
    }

    fn grow(&mut self, by: usize) -> bool {
        let Some(budget) = &self.budget else { return true };
        let fits = |used: usize| used.checked_add(by).filter(|sum| *sum <= budget.limit);
        let is_reserved = budget.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        self.held += if is_reserved { by } else { 0 };
        is_reserved
    }

    fn release(&self, bytes: usize) {
        if let Some(budget) = &self.budget {
            budget.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.release(self.held);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::{BodyBudget, BudgetShare};

    #[test]
    fn dropped_and_decoded_bodies_release_their_memory() {
        let budget = BodyBudget::of_bodies(1000);
        let (mut one, mut two) = (BudgetShare::new(&budget), BudgetShare::new(&budget));
        assert!(one.reserve_body(600) && two.reserve_body(400) && !two.reserve_body(1));
        drop(one);
        assert!(two.reserve_body(100) && two.reserve_decoded(b"[{}]"));
        two.release_body(500);
        assert_eq!(budget.used.load(Ordering::Relaxed), 512);
        drop(two);
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn small_objects_cost_their_decoded_size() {
        let budget = BodyBudget::of_bodies(10_000);
        let many = format!("[{}{{}}]", "{},".repeat(1000));
        let mut share = BudgetShare::new(&budget);
        assert!(share.reserve_body(many.len()));
        assert!(!share.reserve_decoded(many.as_bytes()), "3 kB of JSON that decode to 0.5 MB");
    }
}
