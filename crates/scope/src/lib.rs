//! Selects what one client may see: a `View` of the snapshot.
//! Pure: no I/O, no async, no clock. `translate` makes Envoy resources of it.

#![forbid(unsafe_code)]

pub mod addresses;
pub mod client;
pub mod credentials;
pub mod egress;
pub mod extensions;
pub mod gateway;
pub mod identity;
mod imports;
pub mod inbound;
pub mod outbound;
pub mod patches;
pub mod reads;
pub mod rules;
mod sections;
pub mod select;
pub mod view;
mod visibility;

pub use client::ReadProxy;
pub use view::View;
