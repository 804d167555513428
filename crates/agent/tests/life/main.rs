//! Envoy's life under the agent: starts, crashes, certificates, ends. Real Envoy and stubs, real processes and time.

mod crashes;
mod ends;
mod epochs;
mod stage;
mod starts;
