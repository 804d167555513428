//! What tests share: guards for processes, real-server starters, small backends and a client.
//! A dev-dependency only. Its functions panic with a readable reason: a test has no better answer.

#![forbid(unsafe_code)]

pub mod backend;
pub mod canonical;
pub mod cases;
pub mod certificates;
pub mod client;
pub mod consul;
pub mod copilot;
pub mod difference;
pub mod discovery;
pub mod envoy;
pub mod eureka;
pub mod fake_api;
pub mod faulty;
pub mod forwarder;
pub mod istiod;
pub mod kubectl;
pub mod kubernetes;
pub mod ports;
pub mod process;
pub mod programs;
pub mod scripted;
pub mod sds;
pub mod servers;
pub mod tls;
pub mod wait;
