//! Deterministic random numbers from a seed.

use serde_json::Value;

/// A generator (splitmix64).
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// A number below `sides`.
    pub(super) fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) % sides.max(1) as u64) as usize
    }

    /// True with this probability in percent.
    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.roll(100) < percent
    }

    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.roll(from.len())]
    }
}

/// Adds some of these members to an object, each with its probability in percent.
pub(super) fn sprinkle(object: &mut Value, members: &[(usize, &str, Value)], dice: &mut Dice) {
    for (percent, key, value) in members {
        if dice.chance(*percent) {
            object[*key] = value.clone();
        }
    }
}
