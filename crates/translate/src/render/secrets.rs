//! SDS configs: whether Envoy fetches a secret from its agent or from the control plane.

use api::Duration;
use api::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use api::envoy::config::core::v3::grpc_service::{EnvoyGrpc, TargetSpecifier};
use api::envoy::config::core::v3::{
    AggregatedConfigSource, ApiConfigSource, ApiVersion, ConfigSource, GrpcService, api_config_source,
};
use api::envoy::extensions::transport_sockets::tls::v3::SdsSecretConfig;

use crate::names::EXTERNAL_SDS_CLUSTER;

/// SDS names of the workload certificate and the mesh's CA certificates, served by the agent.
pub const WORKLOAD_CERTIFICATE: &str = "default";
pub const TRUSTED_ROOTS: &str = "ROOTCA";

const AGENT: &str = "sds-grpc";
const AGENT_FILES: &str = "sds-files-grpc";
const BUILTIN: &str = "builtin://";
const EXTERNAL: &str = "sds://";
const INVALID: &str = "invalid://";
const SECRET: &str = "kubernetes://";
const GATEWAY_SECRET: &str = "kubernetes-gateway://";
const CONFIG_MAP: &str = "configmap://";
const ROOTS_SUFFIX: &str = "-cacert";

/// A secret from the agent. Envoy waits without timeout for its workload certificate and CA certificates only.
pub fn from_agent(name: &str) -> SdsSecretConfig {
    let waits = name == WORKLOAD_CERTIFICATE || name == TRUSTED_ROOTS;
    by_grpc(name, AGENT, waits)
}

/// Files served by the agent, from its socket for files if it has one.
pub fn from_files(name: &str, own_socket: bool) -> SdsSecretConfig {
    if own_socket { by_grpc(name, AGENT_FILES, false) } else { from_agent(name) }
}

/// The certificate and key of a credential.
pub fn from_credential(name: &str, external_socket: bool) -> SdsSecretConfig {
    if name == BUILTIN {
        return from_agent(WORKLOAD_CERTIFICATE);
    }
    if name == format!("{BUILTIN}{ROOTS_SUFFIX}") {
        return from_agent(TRUSTED_ROOTS);
    }
    let name = match name.strip_prefix(EXTERNAL) {
        // External SDS providers expect the full name.
        Some(_) if external_socket => return by_grpc(name, EXTERNAL_SDS_CLUSTER, false),
        Some(rest) => rest,
        None => name,
    };
    SdsSecretConfig { name: resource_name(name), sds_config: Some(from_us(None)) }
}

/// The CA certificates of a credential.
pub fn roots_of_credential(name: &str, external_socket: bool) -> SdsSecretConfig {
    from_credential(&format!("{name}{ROOTS_SUFFIX}"), external_socket)
}

/// Whether a credential is a ConfigMap, which needs no permission to read Secrets.
pub fn is_config_map(credential: &str) -> bool {
    credential.starts_with(CONFIG_MAP)
}

/// The client's ADS stream.
pub fn from_us(initial_fetch_timeout: Option<Duration>) -> ConfigSource {
    ConfigSource {
        config_source_specifier: Some(ConfigSourceSpecifier::Ads(AggregatedConfigSource {})),
        initial_fetch_timeout,
        resource_api_version: ApiVersion::V3 as i32,
        ..ConfigSource::default()
    }
}

fn resource_name(credential: &str) -> String {
    if credential.starts_with(BUILTIN) {
        return WORKLOAD_CERTIFICATE.to_owned();
    }
    if credential.starts_with(INVALID) {
        return INVALID.to_owned();
    }
    if [CONFIG_MAP, SECRET, GATEWAY_SECRET].iter().any(|prefix| credential.starts_with(prefix)) {
        return credential.to_owned();
    }
    format!("{SECRET}{credential}")
}

fn by_grpc(name: &str, cluster: &str, waits: bool) -> SdsSecretConfig {
    let target = EnvoyGrpc { cluster_name: cluster.to_owned(), ..EnvoyGrpc::default() };
    let service = GrpcService { target_specifier: Some(TargetSpecifier::EnvoyGrpc(target)), ..GrpcService::default() };
    let source = ApiConfigSource {
        api_type: api_config_source::ApiType::Grpc as i32,
        set_node_on_first_message_only: true,
        transport_api_version: ApiVersion::V3 as i32,
        grpc_services: vec![service],
        ..ApiConfigSource::default()
    };
    let sds_config = ConfigSource {
        config_source_specifier: Some(ConfigSourceSpecifier::ApiConfigSource(source)),
        resource_api_version: ApiVersion::V3 as i32,
        initial_fetch_timeout: waits.then(Duration::default),
        ..ConfigSource::default()
    };
    SdsSecretConfig { name: name.to_owned(), sds_config: Some(sds_config) }
}
