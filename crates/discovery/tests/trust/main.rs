//! The certificate authority of pilot-discovery, with its real binary: issuing, refusals, rotation, plugged-in CAs.

// Clippy recognizes tests by their attribute, but not the helper functions.
#![allow(clippy::unwrap_used)]

mod agent;
mod agent_modes;
mod attacks;
mod clock;
mod cve_pages_and_floods;
mod cve_rendered;
mod cves;
mod debug_callers;
mod files;
mod fixture;
mod issue;
mod kubernetes;
mod loaded_mesh;
mod oidc;
mod optional_roles;
mod rates;
mod registration;
mod registration_agent;
mod reviews;
mod rotation;
mod rotation_under_load;
mod signer;
mod streams;
mod trust_bundle;
