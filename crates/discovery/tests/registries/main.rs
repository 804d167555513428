//! From a real registry to a request through a real Envoy: Consul and Eureka by their flags and by a file.

mod absent;
mod consul;
mod eureka;
mod same;
mod stage;
