//! Runs the Envoy process: epochs, restarts, draining and exit. `supervisor` is the entry point, `command` builds the
//! command line, `exit` lists the reasons to end.

pub mod back_off;
pub mod command;
pub mod drain;
mod epoch;
pub mod exec_child;
pub mod exit;
mod hot_restart;
pub mod lifecycle;
pub mod supervisor;
