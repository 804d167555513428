//! Attacks on a running agent by config authors, other local users, web pages and the workload. Each test named
//! `hole_NN_…` covers one closed security hole.

// clippy knows tests by their attribute, and not the functions that they share.
#![allow(clippy::unwrap_used)]

mod dns;
mod files;
mod fixture;
mod sockets;
