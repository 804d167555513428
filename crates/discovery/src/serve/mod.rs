//! From changes to responses: `snapshot_writer` applies batches and publishes epochs, `views` cuts and renders them
//! once per class of clients, `session` hands them to the protocol, `clients` remembers who is connected,
//! `turns` shares time between namespaces, `bounded` and `excess` keep what is sent within limits,
//! `quarantine` keeps from a client what it refuses, `wanted` tells sources what to fetch, `mesh` by which
//! settings to place what they see, and `statuses` what is to be written back. `history` keeps what objects were, and
//! `housekeeping` frees what is of no more use.

pub(crate) mod bounded;
mod by_name;
pub(crate) mod caller;
pub mod clients;
pub mod configs;
pub mod excess;
pub mod history;
pub(crate) mod housekeeping;
pub(crate) mod layers;
pub(crate) mod mesh;
mod pace;
pub mod quarantine;
mod refusals;
pub mod rendered;
pub mod renderings;
mod round;
pub mod session;
pub mod snapshot_writer;
pub(crate) mod statuses;
mod tables;
mod turns;
pub mod views;
pub mod wanted;
