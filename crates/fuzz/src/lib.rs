//! Targets for fuzzing: functions of bytes that must neither panic nor take much time or memory, whatever the bytes are.
//! Each covers the code behind one kind of untrusted input. `corpus/NAME` has inputs of the target NAME, which
//! `tests/corpora.rs` replays; `cargo xtask fuzz` searches for more with libFuzzer.

#![forbid(unsafe_code)]

mod clients;
mod configuration;
mod credentials;
mod injection;
mod input;
mod registries;
mod requests;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    pub name: &'static str,
    /// Reads an input. A panic is a finding.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[FuzzTarget] = &[
    row("token", credentials::token),
    row("csr", credentials::csr),
    row("pem_bundle", credentials::pem_bundle),
    row("jwks", credentials::jwks),
    row("kubeconfig", credentials::kubeconfig),
    row("node", clients::node),
    row("discovery_request", clients::discovery_request),
    row("delta_discovery_request", clients::delta_discovery_request),
    row("dns", clients::dns),
    row("yaml_documents", configuration::yaml_documents),
    row("config_kinds", configuration::config_kinds),
    row("mesh_config", configuration::mesh_config),
    row("admission_review", injection::admission_review),
    row("pod", injection::pod),
    row("template", injection::template),
    row("values", injection::values),
    row("json_patch", injection::json_patch),
    row("consul", registries::consul),
    row("eureka", registries::eureka),
    row("copilot", registries::copilot),
    row("etcd", registries::etcd),
    row("zookeeper", registries::zookeeper),
    row("mcp", registries::mcp),
    row("http_request", requests::http_request),
    row("config_api", requests::config_api),
];

const fn row(name: &'static str, run: fn(&[u8])) -> FuzzTarget {
    FuzzTarget { name, run }
}

/// The target of a name.
pub fn target(name: &str) -> Option<&'static FuzzTarget> {
    TARGETS.iter().find(|target| target.name == name)
}
