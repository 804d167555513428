//! The command line: upstream's flags from Pilot 0.8 to today, as plain values. `flags` lists those without effect;
//! `startup` interprets the values.

pub mod config_api;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use cli::args::{Logging, Version, duration};
use cli::flags;
use sources::registry::flags::{FlagKind, RegistryFlag};
use sources::registry::table;

use crate::flags::WITHOUT_EFFECT;
use config_api::{ConfigApiFlags, KubeconfigFlags};

/// The control plane of the mesh: serves Envoys over xDS.
#[derive(Debug, Parser)]
#[command(name = "pilot-discovery", disable_version_flag = true, args_override_self = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: DiscoveryCommand,
}

#[derive(Debug, Subcommand)]
pub enum DiscoveryCommand {
    /// Start the discovery service
    Discovery(Box<DiscoveryFlags>),
    /// Print the CustomResourceDefinitions of Istio's kinds
    Crds(CrdsFlags),
    /// Work with the configuration API
    #[command(subcommand)]
    ConfigApi(ConfigApiCommand),
    /// Print each flag and environment variable with its value and where that comes from
    Settings(SettingsFlags),
    /// Make an HTTP request to a running discovery service's debug port
    Request(RequestFlags),
    /// Print the version
    Version(Version),
}

/// Flags of `pilot-discovery crds`.
#[derive(Clone, Copy, Debug, Args)]
pub struct CrdsFlags {
    /// Print those of the kinds of old Istio releases instead, such as RouteRule, Policy and ServiceRole
    #[arg(long)]
    pub legacy: bool,
}

/// Flags of `pilot-discovery settings`.
#[derive(Clone, Debug, Args)]
pub struct SettingsFlags {
    /// Flags as they are given to `discovery`; a running server shows its own at /debug/settings
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub flags: Vec<String>,
}

/// A flag of `discovery` with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlagValue {
    pub name: String,
    pub value: String,
    /// Whether it was given.
    pub is_given: bool,
}

/// Values of `--registerCRDs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RegisterCrds {
    #[default]
    False,
    /// Today's kinds
    True,
    /// Today's kinds and those of old Istio releases
    Legacy,
}

/// Commands of `pilot-discovery config-api`.
#[derive(Debug, Subcommand)]
pub enum ConfigApiCommand {
    /// Print a kubeconfig for kubectl and other clients of the configuration API
    Kubeconfig(KubeconfigFlags),
}

/// Flags of `pilot-discovery discovery`.
#[derive(Clone, Debug, Args)]
#[command(args_override_self = true)]
pub struct DiscoveryFlags {
    /// Platform service registries to read from, separated by commas; empty for none
    #[arg(long, value_delimiter = ',', default_value = "Kubernetes", action = ArgAction::Set)]
    pub registries: Vec<String>,

    /// Folder to watch for configuration in YAML files
    #[arg(long = "configDir")]
    pub config_dir: Option<PathBuf>,

    /// Folder for copies of the last good content of configuration files: a server that starts while a file is broken
    /// serves its copy
    #[arg(long = "stateDir")]
    pub state_dir: Option<PathBuf>,

    /// File with the mesh configuration
    #[arg(long = "meshConfig", default_value = "./etc/istio/config/mesh")]
    pub mesh_config: PathBuf,

    /// File with the mesh networks
    #[arg(long = "networksConfig", default_value = "./etc/istio/config/meshNetworks")]
    pub networks_config: PathBuf,

    /// Kubeconfig file; not needed inside a cluster
    #[arg(long, default_value = "")]
    pub kubeconfig: String,

    /// Install the CustomResourceDefinitions of Istio's kinds in the API server before watching it
    #[arg(
        long = "registerCRDs",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_value = "false",
        default_missing_value = "true"
    )]
    pub register_crds: RegisterCrds,

    /// DNS suffix of the mesh
    #[arg(long, default_value = "cluster.local")]
    pub domain: String,

    /// Name of this instance's cluster; default: $CLUSTER_ID, else Kubernetes
    #[arg(long = "clusterID", default_value = "")]
    pub cluster_id: String,

    /// Namespace of this instance; default: $POD_NAMESPACE, else istio-system
    #[arg(long, short = 'n', default_value = "")]
    pub namespace: String,

    /// Address for readiness and debug pages; empty turns it off
    #[arg(long = "httpAddr", default_value = ":8080")]
    pub http_addr: String,

    /// Address for webhooks; empty turns it off
    #[arg(long = "httpsAddr", default_value = ":15017")]
    pub https_addr: String,

    /// Address for xDS in plain text; empty turns it off
    #[arg(long = "grpcAddr", default_value = ":15010")]
    pub grpc_addr: String,

    /// Address for xDS over TLS; empty turns it off
    #[arg(long = "secureGRPCAddr", alias = "secureGrpcAddr", default_value = ":15012")]
    pub secure_grpc_addr: String,

    /// Address for metrics, the version and debug pages; empty turns it off
    #[arg(long = "monitoringAddr", default_value = ":15014")]
    pub monitoring_addr: String,

    /// Port of ControlZ, which reads and sets log levels (`istioctl admin log`); 0 for any free port
    #[arg(long = "ctrlz_port", default_value = "9876")]
    pub ctrlz_port: u16,

    /// Address of ControlZ; only callers on loopback are served; empty turns it off
    #[arg(long = "ctrlz_address", default_value = "localhost")]
    pub ctrlz_address: String,

    /// Additional host names under which debug pages are served, separated by commas; IP addresses, localhost and
    /// Services of this instance's namespace are always allowed
    #[arg(long = "debugHosts", value_delimiter = ',')]
    pub debug_hosts: Vec<String>,

    /// How long a stopping server waits for clients to disconnect
    #[arg(long = "shutdownDuration", default_value = "10s", value_parser = duration)]
    pub shutdown_duration: Duration,

    /// Folder for the self-signed root of the certificate authority; default: a Secret of this instance's namespace
    #[arg(long = "caDir")]
    pub ca_folder: Option<PathBuf>,

    /// Further names of this instance's cluster in tokens of clients, separated by commas
    #[arg(long = "clusterAliases", value_delimiter = ',', value_parser = cluster_alias)]
    pub cluster_aliases: Vec<String>,

    #[command(flatten)]
    pub config_api: ConfigApiFlags,

    #[command(flatten)]
    pub kubernetes: KubernetesFlags,

    #[command(flatten)]
    pub registry_flags: RegistryFlags,

    #[command(flatten)]
    pub tls: TlsFlags,

    #[command(flatten)]
    pub keepalive: KeepaliveFlags,

    #[command(flatten)]
    pub clients: ClientFlags,

    #[command(flatten)]
    pub logging: Logging,

    /// Flags that were removed before parsing; logged once the log is started.
    #[arg(skip)]
    pub ignored_flags: flags::IgnoredFlags,

    /// All flags with their values, by name.
    #[arg(skip)]
    pub values: Vec<FlagValue>,
}

/// An alias, alone or in upstream's form `ALIAS=CLUSTER`.
fn cluster_alias(text: &str) -> Result<String, std::convert::Infallible> {
    Ok(text.split('=').next().unwrap_or_default().trim().to_owned())
}

/// Flags of the Kubernetes registry.
#[derive(Clone, Debug, Args)]
pub struct KubernetesFlags {
    /// Requests per second to each API server, on average; negative for no limit
    #[arg(long = "kubernetesApiQPS", default_value = "80", allow_negative_numbers = true)]
    pub queries_per_second: f64,

    /// Burst of requests to each API server
    #[arg(long = "kubernetesApiBurst", default_value = "160", allow_negative_numbers = true)]
    pub burst: i64,

    /// List everything again at this interval, to find changes without a watch event; 0 for never
    #[arg(long, default_value = "0s", value_parser = duration)]
    pub resync: Duration,

    /// Namespace of the Secrets and the ConfigMap that name remote clusters; default: this instance's
    #[arg(long = "clusterRegistriesNamespace", default_value = "")]
    pub registries_namespace: String,

    /// ConfigMap that names remote clusters, in the format of Pilot 0.8
    #[arg(long = "clusterRegistriesConfigMap", default_value = "")]
    pub registries_config_map: String,

    /// Folder of files that name remote clusters: kubeconfigs, or Cluster objects that refer to one
    #[arg(long = "clusterRegistriesDir")]
    pub registries_folder: Option<PathBuf>,

    /// Namespaces to watch, separated by commas; default: all
    #[arg(long = "appNamespace", short = 'a', value_delimiter = ',')]
    pub namespaces: Vec<String>,
}

/// Flags of the other registries.
#[derive(Clone, Debug, Default, Args)]
pub struct RegistryFlags {
    /// File that describes registries with all their options
    #[arg(long = "registryConfig")]
    pub config: Option<PathBuf>,

    #[command(flatten)]
    pub adapters: AdapterFlags,

    /// MCP servers to read configuration from, as mcp://HOST:PORT, separated by commas
    #[arg(long = "mcpServerAddrs", value_delimiter = ',')]
    pub mcp_servers: Vec<String>,
}

/// Values of the flags that registries declare in `sources::registry`, by flag name.
#[derive(Clone, Debug, Default)]
pub struct AdapterFlags(pub BTreeMap<&'static str, String>);

impl Args for AdapterFlags {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.args(table::flags().map(adapter_flag))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        AdapterFlags::augment_args(command)
    }
}

impl FromArgMatches for AdapterFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<AdapterFlags, clap::Error> {
        let value = |flag: &RegistryFlag| Some((flag.name, matches.get_one::<String>(flag.name)?.clone()));
        Ok(AdapterFlags(table::flags().filter_map(value).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = AdapterFlags::from_arg_matches(matches)?;
        Ok(())
    }
}

fn adapter_flag(flag: &RegistryFlag) -> Arg {
    let arg = Arg::new(flag.name).long(flag.name).value_name(flag.value_name).help(flag.help);
    let arg = arg.default_value(flag.default).hide_default_value(flag.default.is_empty());
    match flag.kind {
        FlagKind::Text => arg,
        FlagKind::Duration => arg.value_parser(|text: &str| duration(text).map(|_| text.to_owned())),
    }
}

/// Certificates of the TLS port. Changed files are reloaded.
#[derive(Clone, Debug, Default, Args)]
pub struct TlsFlags {
    /// Certificate chain of the server
    #[arg(long = "tlsCertFile", default_value = "")]
    pub cert_file: String,

    /// Private key of the server
    #[arg(long = "tlsKeyFile", default_value = "")]
    pub key_file: String,

    /// CA certificates that verify client certificates
    #[arg(long = "caCertFile", default_value = "")]
    pub ca_file: String,
}

/// Keepalive and maximum age of connections.
#[derive(Clone, Debug, Args)]
pub struct KeepaliveFlags {
    /// Send a ping after this time without data from a client
    #[arg(long = "keepaliveInterval", default_value = "30s", value_parser = duration)]
    pub interval: Duration,

    /// Close a connection whose ping is not answered within this time
    #[arg(long = "keepaliveTimeout", default_value = "10s", value_parser = duration)]
    pub timeout: Duration,

    /// Ask clients to reconnect after this time; default: never
    #[arg(long = "keepaliveMaxServerConnectionAge", value_parser = duration)]
    pub max_connection_age: Option<Duration>,
}

/// Memory limits for state that clients cause: subscribed names that do not exist, unfinished requests, streams.
#[derive(Clone, Copy, Debug, Args)]
pub struct ClientFlags {
    /// Memory limit for the state of all clients together, in megabytes
    #[arg(long = "maxClientMemory", default_value = "2048")]
    pub memory: usize,

    /// Memory limit for the state of clients from one address, in megabytes; each stream counts 32 kilobytes
    #[arg(long = "maxClientMemoryPerAddress", default_value = "256")]
    pub memory_per_address: usize,
}

impl ClientFlags {
    pub(crate) fn allowance(self) -> xds::Allowance {
        let bytes = |megabytes: usize| megabytes.saturating_mul(1 << 20);
        xds::Allowance {
            total_bytes: bytes(self.memory),
            peer_bytes: bytes(self.memory_per_address),
            ..xds::Allowance::default()
        }
    }
}

/// Flags of `pilot-discovery request`.
#[derive(Clone, Debug, Args)]
pub struct RequestFlags {
    /// GET, POST, PUT or DELETE
    pub method: String,
    /// Path, such as /debug/syncz
    pub path: String,
    /// Request body
    pub body: Option<String>,
    /// Address of the debug port
    #[arg(long, default_value = "127.0.0.1:15014")]
    pub address: String,
    /// How long to wait for the response
    #[arg(long, default_value = "60s", value_parser = duration)]
    pub timeout: Duration,
}

impl Cli {
    /// Parses a command line. Unknown flags of `discovery` are ignored, as in upstream.
    pub fn read(args: impl IntoIterator<Item = String>) -> Result<Cli, clap::Error> {
        let command = Cli::command();
        let (args, ignored_flags) = flags::split_ignored(&command, "discovery", WITHOUT_EFFECT, args);
        let definition = command.find_subcommand("discovery").cloned();
        let matches = command.try_get_matches_from(args)?;
        let mut cli = Cli::from_arg_matches(&matches)?;
        if let DiscoveryCommand::Discovery(discovery) = &mut cli.command {
            discovery.ignored_flags = ignored_flags;
            discovery.values = definition
                .zip(matches.subcommand_matches("discovery"))
                .map(|(d, m)| flag_values(&d, m))
                .unwrap_or_default();
            discovery.registries.retain(|name| !name.is_empty());
        }
        Ok(cli)
    }
}

fn flag_values(definition: &Command, matches: &ArgMatches) -> Vec<FlagValue> {
    let flags = definition.get_arguments().filter_map(|flag| Some((flag.get_long()?, flag.get_id().as_str())));
    let value = |id: &str| {
        let given = matches.try_get_raw(id).ok().flatten().into_iter().flatten();
        given.map(|text| text.to_string_lossy().into_owned()).collect::<Vec<_>>().join(",")
    };
    let mut values: Vec<FlagValue> = flags
        .filter(|(name, _)| *name != "help")
        .map(|(name, id)| FlagValue {
            name: name.to_owned(),
            value: value(id),
            is_given: matches.value_source(id) == Some(ValueSource::CommandLine),
        })
        .collect();
    values.sort_by(|a, b| a.name.cmp(&b.name));
    values
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Cli, DiscoveryCommand, DiscoveryFlags};

    fn discovery(args: &[&str]) -> DiscoveryFlags {
        let line = ["pilot-discovery", "discovery"].iter().chain(args).map(|a| a.to_string());
        match Cli::read(line).unwrap().command {
            DiscoveryCommand::Discovery(discovery) => *discovery,
            other => panic!("not discovery: {other:?}"),
        }
    }

    #[test]
    fn defaults_are_upstreams() {
        let args = discovery(&[]);
        assert_eq!(args.registries, ["Kubernetes"]);
        assert_eq!(
            [&args.http_addr, &args.https_addr, &args.grpc_addr, &args.secure_grpc_addr, &args.monitoring_addr],
            [":8080", ":15017", ":15010", ":15012", ":15014"]
        );
        assert_eq!((&*args.domain, args.shutdown_duration), ("cluster.local", Duration::from_secs(10)));
        assert_eq!(args.keepalive.max_connection_age, None);
    }

    #[test]
    fn values_with_and_without_equals_sign_and_old_aliases_are_parsed() {
        let args = discovery(&["--secureGrpcAddr", ":1", "--grpcAddr=:2", "-n", "mesh", "--meshConfig", "m.yaml"]);
        assert_eq!((&*args.secure_grpc_addr, &*args.grpc_addr, &*args.namespace), (":1", ":2", "mesh"));
        assert_eq!(args.mesh_config.to_str(), Some("m.yaml"));
    }

    #[test]
    fn empty_values_count_and_the_last_value_wins() {
        let args = discovery(&["--registries=", "--secureGRPCAddr=", "--grpcAddr=:1", "--grpcAddr=:2"]);
        assert!(args.registries.is_empty() && args.secure_grpc_addr.is_empty());
        assert_eq!(args.grpc_addr, ":2");
        assert_eq!(discovery(&["--registries=Mock,Consul"]).registries, ["Mock", "Consul"]);
    }

    #[test]
    fn durations_are_go_durations() {
        let args = discovery(&["--keepaliveMaxServerConnectionAge=30m", "--shutdownDuration=1m30s"]);
        assert_eq!(args.keepalive.max_connection_age, Some(Duration::from_secs(1800)));
        assert_eq!(args.shutdown_duration, Duration::from_secs(90));
        for bad in ["--shutdownDuration=soon", "--shutdownDuration=-1s"] {
            let line = ["pilot-discovery", "discovery", bad].map(String::from);
            assert!(Cli::read(line).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_may_be_negative_and_fractional() {
        let rate = |args: &[&str]| {
            let flags = discovery(args).kubernetes;
            (flags.queries_per_second, flags.burst)
        };
        assert_eq!(rate(&[]), (80.0, 160));
        assert_eq!(rate(&["--kubernetesApiQPS=0.5", "--kubernetesApiBurst", "3"]), (0.5, 3));
        assert_eq!(rate(&["--kubernetesApiQPS", "-1"]), (-1.0, 160));
    }

    #[test]
    fn a_switch_works_with_and_without_a_value() {
        assert!(discovery(&["--log_as_json"]).logging.as_json);
        assert!(!discovery(&["--log_as_json=false"]).logging.as_json);
    }
}
