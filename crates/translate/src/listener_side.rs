//! Which side of a proxy a listener serves. Policies and telemetry depend on it.

/// The side of the proxy that a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ListenerSide {
    /// Traffic to the sidecar's workload.
    SidecarInbound,
    /// Traffic from the sidecar's workload.
    SidecarOutbound,
    /// Traffic to a gateway.
    Gateway,
}
