//! pilot-discovery: joins sources, model, scope and translate and serves the result over xDS.
//! Start-up stands in `wire`, what happens on a change in `serve`.

#![forbid(unsafe_code)]

pub mod offline;
pub mod serve;
