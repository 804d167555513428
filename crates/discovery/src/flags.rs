//! Flags of upstream that are accepted without effect.

/// Flags that are accepted, with their value, and ignored.
pub(crate) const WITHOUT_EFFECT: &[&str] = &[
    "cniNamespace",
    "disable-install-crds",
    "discovery_cache",
    "discoveryCache",
    "enableCRDs",
    "mcpInitialConnWindowSize",
    "mcpInitialWindowSize",
    "mcpMaxMsgSize",
    "plugins",
    "port",
    "profile",
    "tls-cipher-suites",
    "tls-min-version",
    "trust-domain",
    "webhookEndpoint",
];
