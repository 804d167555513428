//! The command line: flags of upstream's agent, from Pilot 0.8 to today, as plain values.
//! `flags` sets aside what cannot be understood before clap sees it; `wire` gives the values their meaning.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use cli::args::{Logging, Version, duration};
use cli::flags;

use crate::flags::WITHOUT_EFFECT;

/// Stands beside one Envoy: gives it an identity and a bootstrap, keeps it running, serves it locally.
#[derive(Debug, Parser)]
#[command(name = "pilot-agent", disable_version_flag = true, args_override_self = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: AgentCommand,
}

#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Run an Envoy and keep it
    Proxy(Box<ProxyArgs>),
    /// Make an HTTP request to Envoy's admin port
    Request(RequestArgs),
    /// Wait until Envoy is ready
    Wait(WaitArgs),
    /// Print the version
    Version(Version),
    /// Write the rules that send a workload's traffic through Envoy
    #[command(name = "istio-iptables", disable_help_flag = true)]
    IstioIptables {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Become a program that dies with the process that asked for it
    #[command(hide = true)]
    ExecChild(ExecChildArgs),
}

/// What this proxy is to the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProxyType {
    Sidecar,
    /// 0.8's name of a gateway for Ingress; a router today
    Ingress,
    Router,
    Waypoint,
}

/// Flags of `pilot-agent proxy`. A flag that is given wins over ProxyConfig from file, environment and annotation.
#[derive(Clone, Debug, Args)]
#[command(args_override_self = true)]
pub struct ProxyArgs {
    /// What this proxy is
    #[arg(default_value = "sidecar", value_enum)]
    pub kind: ProxyType,

    #[command(flatten)]
    pub identity: IdentityFlags,

    #[command(flatten)]
    pub settings: ProxyConfigFlags,

    /// File with the mesh configuration, of which defaultConfig is read
    #[arg(long = "meshConfig", default_value = "./etc/istio/config/mesh")]
    pub mesh_config: PathBuf,

    /// Bootstrap to render: a file in the form of Go's text/template
    #[arg(long = "templateFile", default_value = "")]
    pub template_file: String,

    /// Envoy's log level, also by component: `info,upstream:debug`
    #[arg(long = "proxyLogLevel", default_value = "warning")]
    pub proxy_log_level: String,

    /// Envoy's log levels by component, where --proxyLogLevel has none
    #[arg(long = "proxyComponentLogLevel", default_value = "")]
    pub proxy_component_log_level: String,

    /// File to which Envoy writes ejections of unhealthy hosts
    #[arg(long = "outlierLogPath", default_value = "")]
    pub outlier_log_path: String,

    /// Let Envoy ask the agent for its configuration; `=false`: Envoy dials the discovery address itself
    #[arg(long = "xdsRelay", num_args = 0..=1, require_equals = true, default_value = "true",
        default_missing_value = "true", action = ArgAction::Set)]
    pub xds_relay: bool,

    /// When certificates change, start a new Envoy that takes over from the old one, as Pilot 0.8 did;
    /// otherwise they are pushed to the running Envoy
    #[arg(long = "hotRestart", num_args = 0..=1, require_equals = true, default_value = "false",
        default_missing_value = "true", action = ArgAction::Set)]
    pub hot_restart: bool,

    #[command(flatten)]
    pub logging: Logging,

    /// Flags that were set aside; told once the log is there.
    #[arg(skip)]
    pub ignored_flags: flags::IgnoredFlags,
}

/// Who this proxy is, where its surroundings do not tell.
#[derive(Clone, Debug, Default, Args)]
pub struct IdentityFlags {
    /// Registry that knows this proxy: Kubernetes, Consul, Eureka, CloudFoundry, Mock, Config or Other
    #[arg(long = "serviceregistry", default_value = "Kubernetes")]
    pub registry: String,

    /// Address of this proxy; else $INSTANCE_IP, else an address of this machine
    #[arg(long, default_value = "")]
    pub ip: String,

    /// Name of this proxy, unique in the mesh; else what the registry asks for
    #[arg(long, default_value = "")]
    pub id: String,

    /// DNS suffix of this proxy; else what the registry asks for
    #[arg(long, default_value = "")]
    pub domain: String,

    /// Region, zone and subzone of this proxy, separated by slashes
    #[arg(long = "availabilityZone", default_value = "")]
    pub availability_zone: String,
}

/// Flags that set a field of ProxyConfig.
#[derive(Clone, Debug, Default, Args)]
pub struct ProxyConfigFlags {
    /// Name of the service that this proxy stands for
    #[arg(long = "serviceCluster")]
    pub service_cluster: Option<String>,

    /// Where the control plane is
    #[arg(long = "discoveryAddress")]
    pub discovery_address: Option<String>,

    /// NONE for a control plane without TLS, else MUTUAL_TLS
    #[arg(long = "controlPlaneAuthPolicy")]
    pub control_plane_auth_policy: Option<String>,

    /// Folder for generated files and sockets
    #[arg(long = "configPath")]
    pub config_path: Option<String>,

    /// The Envoy binary
    #[arg(long = "binaryPath")]
    pub binary_path: Option<String>,

    /// A bootstrap to use as it is
    #[arg(long = "customConfigFile")]
    pub custom_config_file: Option<String>,

    /// Envoy's admin port
    #[arg(long = "proxyAdminPort")]
    pub proxy_admin_port: Option<u16>,

    /// The agent's status port; 0 for none
    #[arg(long = "statusPort")]
    pub status_port: Option<u16>,

    /// Envoy's worker threads; 0 for one per core
    #[arg(long)]
    pub concurrency: Option<i32>,

    /// How long an Envoy that is replaced lets requests finish
    #[arg(long = "drainDuration", value_parser = duration)]
    pub drain_duration: Option<Duration>,

    /// How long an Envoy that is replaced lives at most
    #[arg(long = "parentShutdownDuration", value_parser = duration)]
    pub parent_shutdown_duration: Option<Duration>,

    /// Where Zipkin is
    #[arg(long = "zipkinAddress")]
    pub zipkin_address: Option<String>,

    /// Where Lightstep's satellites are
    #[arg(long = "lightstepAddress")]
    pub lightstep_address: Option<String>,

    /// Token for Lightstep
    #[arg(long = "lightstepAccessToken")]
    pub lightstep_access_token: Option<String>,

    /// Where the Datadog agent is
    #[arg(long = "datadogAgentAddress")]
    pub datadog_agent_address: Option<String>,

    /// Where statsd listens
    #[arg(long = "statsdUdpAddress")]
    pub statsd_udp_address: Option<String>,
}

/// Flags of `pilot-agent request`.
#[derive(Clone, Debug, Args)]
pub struct RequestArgs {
    /// GET, POST, PUT or DELETE
    pub method: String,
    /// Such as config_dump
    pub path: String,
    /// Sent with the request
    pub body: Option<String>,
    /// Envoy's admin port (15000), or the agent's own 15004, 15020 or 15021
    #[arg(long = "debug-port", default_value_t = 15000)]
    pub port: u16,
    /// How long to wait for the answer
    #[arg(long, default_value = "60s", value_parser = duration)]
    pub timeout: Duration,
}

/// Flags of `pilot-agent wait`.
#[derive(Clone, Debug, Args)]
pub struct WaitArgs {
    /// How long to wait at most, in seconds
    #[arg(long = "timeoutSeconds", default_value_t = 60)]
    pub timeout_seconds: u64,
    /// How long an answer may take, in milliseconds
    #[arg(long = "requestTimeoutMillis", default_value_t = 500)]
    pub request_timeout_millis: u64,
    /// How long to wait between questions, in milliseconds
    #[arg(long = "periodMillis", default_value_t = 500)]
    pub period_millis: u64,
    /// What to ask
    #[arg(long, default_value = "http://localhost:15021/healthz/ready")]
    pub url: String,
}

/// Arguments of `pilot-agent keep`, which the agent runs itself.
#[derive(Clone, Debug, Args)]
pub struct ExecChildArgs {
    /// Process id of the agent
    #[arg(long)]
    pub parent: i32,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    pub program: Vec<std::ffi::OsString>,
}

impl Cli {
    /// Reads a command line. Flags of `proxy` that nobody knows are set aside, as upstream does.
    pub fn read(args: impl IntoIterator<Item = String>) -> Result<Cli, clap::Error> {
        let command = Cli::command();
        let (args, ignored_flags) = flags::split_ignored(&command, "proxy", WITHOUT_EFFECT, args);
        let mut cli = Cli::from_arg_matches(&command.try_get_matches_from(args)?)?;
        if let AgentCommand::Proxy(proxy) = &mut cli.command {
            proxy.ignored_flags = ignored_flags;
        }
        Ok(cli)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{AgentCommand, Cli, ProxyArgs, ProxyType};

    fn proxy(line: &str) -> ProxyArgs {
        let words = "pilot-agent proxy".split(' ').chain(line.split_whitespace());
        match Cli::read(words.map(String::from)).unwrap().command {
            AgentCommand::Proxy(proxy) => *proxy,
            other => panic!("not proxy: {other:?}"),
        }
    }

    #[test]
    fn a_line_of_pilot_0_8_is_read() {
        let args = proxy(
            "sidecar --ip 127.0.0.1 --id a-1.shop --domain shop.svc.cluster.local --serviceCluster a \
             --discoveryAddress 127.0.0.1:15010 --configPath d --binaryPath envoy --proxyAdminPort 1 --statusPort 2 \
             --concurrency 1 --controlPlaneAuthPolicy NONE --drainDuration 45s --parentShutdownDuration 1m0s \
             --discoveryRefreshDelay 1s --connectTimeout 10s",
        );
        assert_eq!(args.kind, ProxyType::Sidecar);
        assert_eq!((&*args.identity.ip, &*args.identity.id), ("127.0.0.1", "a-1.shop"));
        assert_eq!((args.settings.proxy_admin_port, args.settings.status_port), (Some(1), Some(2)));
        assert_eq!(args.settings.parent_shutdown_duration, Some(Duration::from_secs(60)));
        assert_eq!(args.ignored_flags.without_effect, ["discoveryRefreshDelay", "connectTimeout"]);
    }

    #[test]
    fn a_line_of_today_is_read_and_strange_flags_are_set_aside() {
        let args = proxy("router --domain x.svc.cluster.local --log_output_level=default:info --new 1 -stsPort=0");
        assert_eq!(args.kind, ProxyType::Router);
        assert_eq!(args.ignored_flags.unknown, ["new"]);
        assert_eq!(args.ignored_flags.without_effect, ["stsPort"]);
        assert!(args.xds_relay && !args.hot_restart);
        assert!(!proxy("--xdsRelay=false").xds_relay && proxy("--hotRestart").hot_restart);
    }

    #[test]
    fn a_role_that_nobody_knows_is_refused() {
        assert!(Cli::read(["pilot-agent", "proxy", "king"].map(String::from)).is_err());
    }

    #[test]
    fn capture_takes_its_flags_as_they_are() {
        let line = "pilot-agent istio-iptables -p 15001 --dry-run -x".split(' ').map(String::from);
        let AgentCommand::IstioIptables { args } = Cli::read(line).unwrap().command else { panic!("not capture") };
        assert_eq!(args, ["-p", "15001", "--dry-run", "-x"]);
    }
}
