//! Wire formats only: Envoy's v3 API and Istio's API, generated from descriptor sets, and the few messages that are in
//! neither set. No behaviour.

#![forbid(unsafe_code)]

pub mod body;
pub mod nds;
pub mod reflect;
pub mod resource;

/// Envoy's API, xds and udpa, in the module tree of their packages.
#[allow(clippy::all, clippy::unwrap_used, rustdoc::all, missing_docs)]
pub mod wire {
    include!(concat!(env!("OUT_DIR"), "/envoy/envoy.rs"));
}

/// Istio's API, in the module tree of its packages.
#[allow(clippy::all, clippy::unwrap_used, rustdoc::all, missing_docs)]
mod istio_wire {
    include!(concat!(env!("OUT_DIR"), "/istio/istio.rs"));
}

pub use body::Body;
pub use istio_wire::istio;
pub use resource::{Resource, TypeUrl, Version};
pub use wire::envoy;

use prost::{Message, Name};
pub use prost_types::{Any, Duration, Struct, Value, value};

/// The message as an `Any`. Unlike prost's conversion, it returns no error, because encoding to a Vec cannot fail.
pub fn any<M: Message + Name>(message: &M) -> Any {
    Any { type_url: M::type_url(), value: message.encode_to_vec() }
}
