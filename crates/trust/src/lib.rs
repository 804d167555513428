//! Certificates and identities of the mesh: SPIFFE names, CSRs, issuing of roots and leaves, root bundles, rotation of
//! roots, and bearer tokens. Pure: the time and serial numbers are parameters; files and servers are read by
//! `discovery` and `agent`.

#![forbid(unsafe_code)]

pub mod authority;
pub mod bundle;
pub mod certificate;
pub mod crl;
pub mod csr;
mod der;
pub mod identity;
pub mod issue;
pub mod key;
pub mod lifetime;
pub mod pem;
pub mod rotation;
mod signature;
pub mod spiffe_bundle;
pub mod token;
pub mod wire;
