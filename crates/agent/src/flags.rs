//! Flags of upstream's agent that are accepted and ignored.

/// Flags that take a value and have no effect.
pub(crate) const WITHOUT_EFFECT: &[&str] = &[
    "applicationPorts",
    "bootstrapv2",
    "controlPlaneBootstrap",
    "disableInternalTelemetry",
    "dnsRefreshRate",
    "lightstepCacertPath",
    "lightstepSecure",
    "mixerIdentity",
    "profiling",
    "statusPortTLS",
    "stsPort",
    "tokenManagerPlugin",
];
