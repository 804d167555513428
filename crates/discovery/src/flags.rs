//! Flags of upstream that have nothing to act on here.

/// Flags of upstream that are accepted, with their value, and change nothing.
/// Those of registries move to `args` when their registry is served.
pub(crate) const WITHOUT_EFFECT: &[&str] = &[
    "clusterAliases",
    "cniNamespace",
    "ctrlz_address",
    "ctrlz_port",
    "disable-install-crds",
    "discovery_cache",
    "discoveryCache",
    "enableCRDs",
    "log_caller",
    "log_rotate",
    "log_rotate_max_age",
    "log_rotate_max_backups",
    "log_rotate_max_size",
    "log_stacktrace_level",
    "log_target",
    "mcpInitialConnWindowSize",
    "mcpInitialWindowSize",
    "mcpMaxMsgSize",
    "plugins",
    "port",
    "profile",
    "tls-cipher-suites",
    "tls-min-version",
    "trust-domain",
    "vklog",
    "webhookEndpoint",
];
