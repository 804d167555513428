//! Renders plans as Envoy's messages. A renderer sees its plan and nothing else.

pub mod cluster;
pub mod endpoints;
pub mod listener;
pub mod names;
pub mod route;
pub mod secret;
pub mod secrets;
