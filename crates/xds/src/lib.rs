//! The xDS protocol, server and client: subscriptions, acknowledgements, push order and shared bodies.
//! Which resources a client gets is decided by the control plane, through [`Control`] and [`Client`].
//!
//! `subscription` and `watch` have the state of one type on one stream, `session` orders the types of a
//! stream, `sotw` and `delta` read requests into that state, and `response` writes responses from it. None of them
//! does I/O, so tests run whole histories as plain values.
//! `server`, `stream`, `requests`, `decode` and `body` put it on gRPC; `executor` decides on which threads, and `woken`
//! spares a task polls. `limits` bounds one client, `budget` the clients of one address and all clients together.

#![forbid(unsafe_code)]

mod body;
mod budget;
pub mod client;
mod control;
mod decode;
mod delta;
mod encoded;
mod executor;
mod held;
mod layer;
mod limits;
mod names;
mod payload;
mod replay;
mod requests;
mod response;
mod server;
mod session;
mod set;
mod sotw;
mod stream;
mod subscription;
mod watch;
mod woken;

#[cfg(test)]
mod tests;

pub use budget::{Allowance, Budget, Charge, Exhausted, Share};
pub use control::{Client, CloseConnection, Control, Event, Former, Offered, Peer, Rejection, Verdict};
pub use executor::{Executor, Job};
pub use layer::Layer;
pub use limits::Limits;
pub use replay::{replay_delta, replay_sotw};
pub use server::{Options, routes};
pub use set::ResourceSet;
pub use woken::WhenWoken;
