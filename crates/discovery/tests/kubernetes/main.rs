//! A server with a real API server: recorded cases, outages, denied requests, CustomResourceDefinitions that come and go,
//! irrelevant events, two clusters, certificates of gateways, kubectl, two replicas, webhooks, managed gateways. The tests
//! share one API server, one test at a time, except those that start their own.

// Clippy recognizes tests by their attribute, but not the helper functions.
#![allow(clippy::unwrap_used)]

mod app_namespace;
mod bursts;
mod cases;
mod chart;
mod cluster;
mod clusters;
mod definitions;
mod election;
mod gateway_leader;
mod gauges;
mod istiod;
mod kubectl;
mod legacy;
mod managed_gateways;
mod noise;
mod operator_logs;
mod outage;
mod push_recorder;
mod replicas;
mod revisions;
mod rights;
mod secrets;
mod selectors;
mod serving;
mod statuses;
mod webhooks;
