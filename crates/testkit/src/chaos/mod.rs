//! A nemesis for the control plane: two replicas on real sources, proxies that record everything, and the faults of a
//! catalogue, injected by seed. Afterwards the history is checked for the eight promises.

mod clients;
mod configs;
mod disk;
mod faults;
mod nemesis;
mod replica;
mod report;
mod sources;
mod world;

pub use faults::Fault;
pub use nemesis::{ChaosLength, ChaosOptions, run};
pub use report::{ChaosReport, Round};
pub use world::World;
