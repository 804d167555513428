//! What one client may see: a `View` cut out of the snapshot, merged and selected.
//! Pure: no I/O, no async, no clock. What becomes of it is translate's business.

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
