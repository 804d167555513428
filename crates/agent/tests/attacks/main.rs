//! Attacks on a running agent by config authors, other users of the machine, web pages and the workload. Each test
//! named `hole_NN_…` keeps one hole closed.

// clippy knows tests by their attribute, and not the functions that they share.
#![allow(clippy::unwrap_used)]

mod dns;
mod files;
mod fixture;
mod sockets;
