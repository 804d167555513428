//! The configuration API: the Kubernetes REST conventions for the kinds of the mesh, on our own storage. `store` keeps
//! objects.

#![forbid(unsafe_code)]

pub mod store;
