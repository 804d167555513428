//! Automatic addresses for hosts without one, from 240.240.0.0/16 and 2001:2::/48 as upstream does it. With an address
//! the agent's DNS proxy can answer for the host, and the host gets its own listener.
//! `entries` assigns them to hosts of ServiceEntries, `registries` to services of registries.

pub mod entries;
pub(super) mod registries;
