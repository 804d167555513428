//! The eight promises of the control plane, proven from the recorded history of a run: what sources were given, which
//! faults were injected, what proxies received and answered, and what the server reported. `check` is pure.

pub mod check;
pub mod content;
pub mod history;
mod planted;
pub mod proxy;
pub mod real;

pub use check::{Checked, Violation, check};
pub use history::{Event, FaultScope, History, MeshPart, ProxyName};
pub use planted::Planted;

use std::fmt;

/// One promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// After the last input every connected proxy holds what a fresh server would send it.
    Convergence,
    /// A proxy never receives endpoints older than those it has acknowledged from the same replica.
    NoRegress,
    /// Endpoints that are sent were in the source, and not longer ago than the staleness window.
    NoInvention,
    /// Only a deletion in the source removes the endpoints of a service.
    NoWipe,
    /// Bytes of secrets and of private services reach only proxies that may have them.
    Isolation,
    /// A fault of one source, object or proxy neither delays nor changes what others get.
    FaultIsolation,
    /// No route is sent before its cluster.
    Order,
    /// A proxy is reported as synced only if it acknowledged that response.
    Honesty,
}

impl Promise {
    pub const ALL: [Promise; 8] = [
        Promise::Convergence,
        Promise::NoRegress,
        Promise::NoInvention,
        Promise::NoWipe,
        Promise::Isolation,
        Promise::FaultIsolation,
        Promise::Order,
        Promise::Honesty,
    ];
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Promise::Convergence => "convergence",
            Promise::NoRegress => "no regress",
            Promise::NoInvention => "no invention",
            Promise::NoWipe => "no wipe",
            Promise::Isolation => "isolation",
            Promise::FaultIsolation => "fault isolation",
            Promise::Order => "order",
            Promise::Honesty => "honesty",
        })
    }
}
