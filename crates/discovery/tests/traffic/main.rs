//! Requests through a real Envoy that pilot-discovery configures, over both variants of the protocol.
//! Each test starts its own server, Envoy and backends on loopback. `mesh.rs` starts them.

mod chained;
mod changes;
mod gateway;
mod gateway_api;
mod mesh;
mod patches;
mod policies;
mod refused;
mod resilience;
mod restart;
mod routes;
mod tcp;
mod tls;
