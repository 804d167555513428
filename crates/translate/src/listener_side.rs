//! What a listener is for. Policies and telemetry differ by it.

/// The side that a listener stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ListenerSide {
    /// Requests to the workload beside a sidecar.
    SidecarInbound,
    /// Requests from the workload beside a sidecar.
    SidecarOutbound,
    /// Requests to a gateway.
    Gateway,
}
