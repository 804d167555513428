//! A server on a real API server: the recorded cases, outages, refusals, kinds that come and go, noise, two clusters,
//! certificates of gateways. One API server serves all tests of this program, one test at a time.

// clippy knows tests by their attribute, and not the functions that they share.
#![allow(clippy::unwrap_used)]

mod bursts;
mod cases;
mod cluster;
mod clusters;
mod definitions;
mod noise;
mod outage;
mod secrets;
mod serving;
mod witness;
