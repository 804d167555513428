//! Envoy's bootstrap: a custom file, a rendered template, or generated. To add a setting: a field in `BootstrapInput`
//! (filled in `plan`), its JSON in `generate/`, and a case in `tests/bootstrap`, which checks every setting with a real
//! Envoy.

mod encoded;
mod families;
mod generate;
mod stats;
mod template;
mod tls;
mod tracers;

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use api::istio::mesh::v1alpha1::ProxyConfig;
use serde::{Deserialize, Serialize};

use crate::identity::metadata::ProxyNode;

pub use generate::generate;
pub use template::render;

/// Input for the bootstrap.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BootstrapInput {
    pub node: ProxyNode,
    #[serde(with = "encoded")]
    pub config: ProxyConfig,
    /// Addresses of this proxy; they determine the IP families to listen on.
    pub ips: Vec<IpAddr>,
    pub ports: StaticPorts,
    pub xds: Xds,
    /// Names of which the control plane's certificate must have one; empty for plain text.
    pub control_plane_names: Vec<String>,
    /// Delta or SotW xDS.
    pub api_type: AdsApiType,
    /// Socket of the agent's SDS server.
    pub sds_socket: String,
    /// Socket of a separate SDS server for files, if another SDS server uses `sds_socket`.
    pub sds_files_socket: Option<String>,
    /// Socket on which the agent receives Envoy's access log, if it makes metrics from it.
    pub access_log_socket: Option<String>,
    pub log_as_json: bool,
    pub outlier_log_path: String,
    /// Pilot 0.8's `--connectTimeout`, for templates.
    pub connect_timeout: Duration,
    /// Pilot 0.8's `--discoveryRefreshDelay`, for templates.
    pub refresh_delay: Duration,
    /// Replaces `$(HOST_IP)` in addresses.
    pub host_ip: Option<String>,
    pub features: FeatureFlags,
}

/// Ports of static listeners; 0 disables a listener.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct StaticPorts {
    /// Readiness, answered by the agent.
    pub status: u16,
    /// Envoy's metrics.
    pub prometheus: u16,
    /// Envoy's metrics over mTLS.
    pub secure_metrics: u16,
    /// Merged metrics of Envoy, agent and application over mTLS.
    pub secure_merged_metrics: u16,
}

/// How Envoy connects to the control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Xds {
    /// Through the agent's relay on this socket.
    Relay(String),
    /// Directly.
    Direct(XdsSecurity),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XdsSecurity {
    Plain,
    MutualTls,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdsApiType {
    Delta,
    Sotw,
}

/// Boolean settings, by the names of upstream's environment variables.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct FeatureFlags {
    /// ISTIO_DUAL_STACK
    pub dual_stack: bool,
    /// EXIT_ON_ZERO_ACTIVE_CONNECTIONS
    pub exit_on_zero_active_connections: bool,
    /// ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL
    pub status_proxy_protocol: bool,
    /// ISTIO_META_ENABLE_SELF_DISCOVERY
    pub self_discovery: bool,
    /// PEER_METADATA_DISCOVERY; an extension that only Istio's build of Envoy has
    pub metadata_discovery: bool,
    /// HTTP_STRIP_FRAGMENT_FROM_PATH_UNSAFE_IF_DISABLED=false
    pub keep_path_fragment: bool,
}

/// Where the bootstrap comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BootstrapSource {
    Custom(PathBuf),
    Template(PathBuf),
    Generated,
}

impl BootstrapSource {
    /// In order of precedence: `$ISTIO_BOOTSTRAP`, custom file, template from flag or ProxyConfig, generated.
    pub fn choose(config: &ProxyConfig, template_flag: &str, override_path: Option<&str>) -> BootstrapSource {
        let named = |path: &str| (!path.is_empty()).then(|| PathBuf::from(path));
        if let Some(path) = override_path.and_then(named) {
            return BootstrapSource::Template(path);
        }
        if let Some(path) = named(&config.custom_config_file) {
            return BootstrapSource::Custom(path);
        }
        let template = named(template_flag).or_else(|| named(&config.proxy_bootstrap_template_path));
        template.map_or(BootstrapSource::Generated, BootstrapSource::Template)
    }
}

/// A bootstrap on disk.
#[derive(Debug, PartialEq, Eq)]
pub struct BootstrapFile {
    pub path: PathBuf,
    /// Created for this epoch and removed with it.
    pub is_ours: bool,
}

/// Writes the bootstrap of an epoch to the config path: `envoy-rev0.json` and so on.
pub fn write(source: &BootstrapSource, input: &BootstrapInput, epoch: u32) -> Result<BootstrapFile> {
    let (text, extension) = match source {
        BootstrapSource::Generated => (generate(input)?.to_string(), "json"),
        BootstrapSource::Custom(path) => match read(path)? {
            // Upstream renders custom files too. A file without template actions is used in place.
            text if text.contains("{{") => (rendered(path, &text, input)?, extension(path)),
            _ => return Ok(BootstrapFile { path: path.clone(), is_ours: false }),
        },
        BootstrapSource::Template(path) => (rendered(path, &read(path)?, input)?, extension(path)),
    };
    let folder = Path::new(&input.config.config_path);
    fs::create_dir_all(folder).with_context(|| format!("could not create the directory {}", folder.display()))?;
    let path = folder.join(format!("envoy-rev{epoch}.{extension}"));
    put(&path, &text).with_context(|| format!("could not write {}", path.display()))?;
    Ok(BootstrapFile { path, is_ours: true })
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("could not read the bootstrap {}", path.display()))
}

fn rendered(path: &Path, text: &str, input: &BootstrapInput) -> Result<String> {
    render(text, input).with_context(|| format!("could not render {}", path.display()))
}

/// Envoy detects the format by the file extension.
fn extension(path: &Path) -> &'static str {
    let name = path.to_string_lossy();
    let is_yaml = [".yaml", ".yaml.tmpl", ".yml", ".yml.tmpl"].iter().any(|end| name.ends_with(end));
    if is_yaml { "yaml" } else { "json" }
}

/// Readable by the owner only: the bootstrap may contain a tracer's access token.
fn put(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)?.write_all(text.as_bytes())
}

/// `host:port` as Envoy's socket address. `$(HOST_IP)` is replaced.
fn socket_address(what: &str, address: &str, host_ip: Option<&str>) -> Result<serde_json::Value> {
    let parsed = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    let (host, port) =
        parsed.with_context(|| format!("could not parse the {what} address {address:?}: expected HOST:PORT"))?;
    let host = match (host, host_ip) {
        ("$(HOST_IP)", Some(ip)) => ip,
        (host, _) => host.trim_start_matches('[').trim_end_matches(']'),
    };
    Ok(serde_json::json!({"address": host, "port_value": port}))
}

#[cfg(test)]
mod tests {
    use model::config::mesh::default_proxy_config;
    use serde_json::json;

    use super::{BootstrapSource, extension, socket_address};

    #[test]
    fn source_is_chosen_as_upstream_does() {
        let mut config = default_proxy_config();
        let choose = |config: &_, flag, over| BootstrapSource::choose(config, flag, over);
        assert_eq!(choose(&config, "", None), BootstrapSource::Generated);
        assert_eq!(choose(&config, "flag.tmpl", None), BootstrapSource::Template("flag.tmpl".into()));
        config.custom_config_file = "own.yaml".to_owned();
        assert_eq!(choose(&config, "flag.tmpl", Some("")), BootstrapSource::Custom("own.yaml".into()));
        assert_eq!(choose(&config, "", Some("over.json")), BootstrapSource::Template("over.json".into()));
        assert_eq!((extension("a.yaml.tmpl".as_ref()), extension("a.tmpl".as_ref())), ("yaml", "json"));
    }

    #[test]
    fn socket_addresses_are_parsed() {
        let of = |text| socket_address("test", text, Some("10.1.1.1")).ok();
        assert_eq!(of("zipkin.istio-system:9411"), Some(json!({"address": "zipkin.istio-system", "port_value": 9411})));
        assert_eq!(of("[fd00::1]:80"), Some(json!({"address": "fd00::1", "port_value": 80})));
        assert_eq!(of("$(HOST_IP):8126"), Some(json!({"address": "10.1.1.1", "port_value": 8126})));
        assert!(of("zipkin").is_none() && of("zipkin:many").is_none());
    }
}
