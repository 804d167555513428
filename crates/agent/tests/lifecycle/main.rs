//! Envoy's life under the agent: starts, crashes, certificates, ends. Real Envoy and stubs, real processes and time.

#![allow(clippy::unwrap_used, reason = "a test has no better answer than a panic")]

mod crashes;
mod fixture;
mod rotation;
mod shutdown;
mod startup;
