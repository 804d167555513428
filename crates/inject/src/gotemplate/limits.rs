//! Limits of one run of a template.

/// Steps of one run: a step is an evaluated operand or 32 bytes of arguments of a function.
pub(super) const MOST_STEPS: u64 = 2_000_000;
/// Maximum size of the output and of any text that a function returns.
pub(super) const MOST_BYTES: usize = 1 << 20;
/// Most entries of a list made by a function.
pub(super) const MOST_ITEMS: usize = 100_000;
/// Deepest nesting of templates that call each other, and of groups within an action.
pub(super) const MOST_DEPTH: usize = 60;
