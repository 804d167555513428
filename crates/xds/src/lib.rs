//! The xDS protocol, server and client: subscriptions, acknowledgements, push order and shared bodies.
//! What the resources say is the control plane's business; it is asked through [`Control`] and [`Client`].
//!
//! `subscription` and `watch` hold the state of one type on one stream, `session` orders the types of a
//! stream, `sotw` and `delta` read requests into that one state, `response` writes what comes out of it,
//! `server`, `stream`, `requests`, `decode` and `body` put it on gRPC, and `executor` says on which threads. `limits`
//! bounds what one client may send, `budget` what clients of one address and all together make the server hold. Up to
//! there nothing does I/O, so that histories can be tested as plain values.

#![forbid(unsafe_code)]

mod body;
mod budget;
pub mod client;
mod control;
mod decode;
mod delta;
mod executor;
mod layer;
mod limits;
mod names;
mod payload;
mod requests;
mod response;
mod server;
mod session;
mod set;
mod sotw;
mod stream;
mod subscription;
mod watch;

#[cfg(test)]
mod tests;

pub use budget::{Allowance, Budget, Charge, Exhausted, Share};
pub use control::{Client, Control, Event, Former, Offered, Peer, Rejection, Verdict};
pub use executor::{Executor, Job};
pub use layer::Layer;
pub use limits::Limits;
pub use server::{Options, routes};
pub use set::ResourceSet;
