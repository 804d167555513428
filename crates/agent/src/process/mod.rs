//! Envoy's life: epochs, restarts, draining, the end. One `Supervisor` runs it all; what a command line looks like
//! is in `command`, why things end in `exit`.

pub mod back_off;
pub mod command;
pub mod drain;
mod epoch;
pub mod exec_child;
pub mod exit;
pub mod lifecycle;
pub mod supervisor;
