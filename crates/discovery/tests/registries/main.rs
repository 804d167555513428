//! From a real registry to a request through a real Envoy: Consul, Eureka and Cloud Foundry by their
//! flags and by a file.

mod absent;
mod cloudfoundry;
mod consul;
mod eureka;
mod removed;
mod same;
mod stage;
