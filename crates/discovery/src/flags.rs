//! Flags of upstream that have nothing to act on here.

/// Flags of upstream that are accepted, with their value, and change nothing.
pub(crate) const WITHOUT_EFFECT: &[&str] = &[
    "clusterAliases",
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
