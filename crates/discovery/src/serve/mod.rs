//! From changes to responses. `snapshot_writer` applies batches and publishes snapshots; `views` selects and renders
//! them once per class of clients (`class`); `session` connects a view to the protocol; `clients` lists connected clients;
//! `turns` divides computing time between namespaces, `offload` runs long work on other threads; `bounded` and `excess` apply limits; `quarantine` keeps
//! rejected objects (`pins`) and resources from a client. Back to sources go fetch requests (`fetch_requests`), settings
//! (`mesh`) and statuses (`statuses`). `history` has earlier versions of objects that a
//! client may still reject, `journal` the last changes for people who look back, `planned` compares
//! what clients are served in two snapshots; `findings` publishes likely mistakes, `waiting` Envoys that wait for secrets;
//! `housekeeping` frees memory.

pub(crate) mod bounded;
mod by_name;
pub(crate) mod caller;
mod class;
pub mod clients;
pub mod configs;
pub mod excess;
pub mod fetch_requests;
pub(crate) mod findings;
pub mod history;
pub(crate) mod housekeeping;
pub mod journal;
pub(crate) mod layers;
pub(crate) mod mcp;
pub(crate) mod mesh;
mod offload;
pub mod pins;
pub(crate) mod planned;
mod proxyless;
mod push_timer;
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
pub(crate) mod waiting;
