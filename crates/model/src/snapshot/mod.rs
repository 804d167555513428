//! The world frozen: immutable sections behind `Arc`.
