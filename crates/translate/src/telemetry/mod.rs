//! What proxies tell about their traffic: access logs, traces, names of statistics.
//! Each file holds what goes into a plan and how it is written down.

pub mod access_log;
pub mod stat_name;
pub mod tracing;
