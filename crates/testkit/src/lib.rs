//! Helpers for tests: child processes, real servers, small backends, clients, recorded cases.
//! A dev-dependency only. Functions panic with a readable message, because a test cannot handle an error.

#![forbid(unsafe_code)]

pub mod backend;
pub mod ca_client;
pub mod canonical;
pub mod cases;
pub mod certificates;
pub mod chaos;
pub mod client;
pub mod clock;
pub mod consul;
pub mod copilot;
pub mod difference;
pub mod discovery;
pub mod envoy;
pub mod error;
pub mod etcd;
pub mod eureka;
pub mod fake_api;
pub mod faulty;
pub mod fleet;
pub mod forwarder;
pub mod frames;
pub mod instructions;
pub mod istioctl;
pub mod istiod;
pub mod kubectl;
pub mod kubelet;
pub mod kubernetes;
pub mod plot;
pub mod ports;
pub mod process;
pub mod programs;
pub mod prometheus;
pub mod promises;
pub mod properties;
pub mod sandbox;
pub mod scripted;
pub mod sds;
pub mod servers;
pub mod slow_disk;
pub mod soak;
pub mod tls;
pub mod tracked;
pub mod trend;
pub mod wait;
pub mod zookeeper;
