//! From changes to responses: `world` applies batches and publishes epochs, `views` cuts and renders them
//! once per class of clients, `session` hands them to the protocol, `clients` remembers who is connected.

pub mod clients;
mod pace;
pub mod renderings;
pub mod session;
pub mod views;
pub mod world;
