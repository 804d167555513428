//! A server on a real API server: the recorded cases, outages, refusals, kinds that come and go, noise, two clusters,
//! certificates of gateways, a user with kubectl, two replicas. One API server serves the tests, one test at a time,
//! but for those that start their own.

// clippy knows tests by their attribute, and not the functions that they share.
#![allow(clippy::unwrap_used)]

mod app_namespace;
mod bursts;
mod cases;
mod chart;
mod cluster;
mod clusters;
mod definitions;
mod election;
mod istiod;
mod kubectl;
mod noise;
mod operator_logs;
mod outage;
mod push_recorder;
mod replicas;
mod rights;
mod secrets;
mod serving;
