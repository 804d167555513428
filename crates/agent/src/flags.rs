//! Flags of upstream's agent that have nothing to act on here.

/// Flags of upstream's agent that are accepted, with their value, and change nothing.
pub(crate) const WITHOUT_EFFECT: &[&str] = &[
    "applicationPorts",
    "bootstrapv2",
    "connectTimeout",
    "controlPlaneBootstrap",
    "disableInternalTelemetry",
    "discoveryRefreshDelay",
    "dnsRefreshRate",
    "lightstepCacertPath",
    "lightstepSecure",
    "mixerIdentity",
    "profiling",
    "statusPortTLS",
    "stsPort",
    "tokenManagerPlugin",
    "trust-domain",
];
