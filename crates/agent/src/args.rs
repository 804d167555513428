//! The command line: flags of upstream's agent, from Pilot 0.8 to today, as plain values.
//! `cli::flags` removes unknown flags before clap sees them; `plan` interprets the values.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use cli::args::{Logging, Version, duration};
use cli::flags;

use crate::flags::WITHOUT_EFFECT;

/// Runs one Envoy: generates its bootstrap, supervises the process, relays xDS and serves secrets to it.
#[derive(Debug, Parser)]
#[command(name = "pilot-agent", disable_version_flag = true, args_override_self = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: AgentCommand,
}

#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Run Envoy and supervise it
    Proxy(Box<ProxyArgs>),
    /// Send an HTTP request to Envoy's admin port
    Request(RequestArgs),
    /// Wait until Envoy is ready
    Wait(WaitArgs),
    /// Print the version
    Version(Version),
    /// Install the iptables rules that redirect a workload's traffic to Envoy
    #[command(name = "istio-iptables", disable_help_flag = true)]
    IstioIptables {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Execute a program that the kernel kills when the agent dies
    #[command(hide = true)]
    ExecChild(ExecChildArgs),
}

/// The role of this proxy in the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProxyType {
    Sidecar,
    /// Pilot 0.8's name for an Ingress gateway; same as router
    Ingress,
    Router,
    Waypoint,
}

/// Flags of `pilot-agent proxy`. A flag overrides ProxyConfig from mesh file, environment and annotation.
#[derive(Clone, Debug, Args)]
#[command(args_override_self = true)]
pub struct ProxyArgs {
    /// Role of this proxy
    #[arg(default_value = "sidecar", value_enum)]
    pub kind: ProxyType,

    #[command(flatten)]
    pub identity: IdentityFlags,

    #[command(flatten)]
    pub settings: ProxyConfigFlags,

    /// MeshConfig file; its defaultConfig is used
    #[arg(long = "meshConfig", default_value = "./etc/istio/config/mesh")]
    pub mesh_config: PathBuf,

    /// Bootstrap template in Go text/template syntax
    #[arg(long = "templateFile", default_value = "")]
    pub template_file: String,

    /// Envoy's log level, optionally per component: `info,upstream:debug`
    #[arg(long = "proxyLogLevel", default_value = "warning")]
    pub proxy_log_level: String,

    /// Envoy's component log levels; ignored if --proxyLogLevel names components
    #[arg(long = "proxyComponentLogLevel", default_value = "")]
    pub proxy_component_log_level: String,

    /// File for Envoy's outlier detection log
    #[arg(long = "outlierLogPath", default_value = "")]
    pub outlier_log_path: String,

    /// Relay xDS through the agent; `=false` lets Envoy connect to the discovery address itself
    #[arg(long = "xdsRelay", num_args = 0..=1, require_equals = true, default_value = "true",
        default_missing_value = "true", action = ArgAction::Set)]
    pub xds_relay: bool,

    /// Hot-restart Envoy when certificates change, as Pilot 0.8 did; otherwise they are pushed over SDS
    #[arg(long = "hotRestart", num_args = 0..=1, require_equals = true, default_value = "false",
        default_missing_value = "true", action = ArgAction::Set)]
    pub hot_restart: bool,

    /// Make istio_requests_total and the other request metrics from Envoy's access log; for an Envoy without Istio's
    /// stats filter; default $PILOTAGE_REQUEST_METRICS
    #[arg(long = "requestMetrics", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub request_metrics: Option<bool>,

    #[command(flatten)]
    pub logging: Logging,

    /// Flags that were ignored; logged once logging has started.
    #[arg(skip)]
    pub ignored_flags: flags::IgnoredFlags,
}

/// Flags that set the proxy's identity.
#[derive(Clone, Debug, Default, Args)]
pub struct IdentityFlags {
    /// Service registry of this proxy: Kubernetes, Consul, Eureka, CloudFoundry, Mock, Config or Other
    #[arg(long = "serviceregistry", default_value = "Kubernetes")]
    pub registry: String,

    /// IP address of this proxy; default $INSTANCE_IP, else an address of this machine
    #[arg(long, default_value = "")]
    pub ip: String,

    /// Unique name of this proxy; the default depends on the registry
    #[arg(long, default_value = "")]
    pub id: String,

    /// DNS domain of this proxy; the default depends on the registry
    #[arg(long, default_value = "")]
    pub domain: String,

    /// Identity of the control plane after the trust domain, such as ns/istio-system/sa/istio-pilot-service-account
    #[arg(long = "pilotIdentity", default_value = "")]
    pub pilot_identity: String,

    /// Trust domain of the control plane's identity; default $TRUST_DOMAIN, else from the DNS domain
    #[arg(long = "trust-domain", default_value = "")]
    pub trust_domain: String,

    /// Locality of this proxy: REGION/ZONE/SUBZONE
    #[arg(long = "availabilityZone", default_value = "")]
    pub availability_zone: String,
}

/// Flags that override fields of ProxyConfig.
#[derive(Clone, Debug, Default, Args)]
pub struct ProxyConfigFlags {
    /// Service name of this proxy (Envoy's --service-cluster)
    #[arg(long = "serviceCluster")]
    pub service_cluster: Option<String>,

    /// Address of the control plane, HOST:PORT; several, given repeatedly or separated by commas, are tried in turn
    #[arg(long = "discoveryAddress", action = ArgAction::Append)]
    pub discovery_address: Vec<String>,

    /// Authentication of the control plane: NONE (plain text) or MUTUAL_TLS
    #[arg(long = "controlPlaneAuthPolicy")]
    pub control_plane_auth_policy: Option<String>,

    /// Directory for generated files and sockets
    #[arg(long = "configPath")]
    pub config_path: Option<String>,

    /// Path of the Envoy binary
    #[arg(long = "binaryPath")]
    pub binary_path: Option<String>,

    /// Custom bootstrap file, used instead of a generated one
    #[arg(long = "customConfigFile")]
    pub custom_config_file: Option<String>,

    /// Envoy's admin port
    #[arg(long = "proxyAdminPort")]
    pub proxy_admin_port: Option<u16>,

    /// The agent's status port; 0 disables it
    #[arg(long = "statusPort")]
    pub status_port: Option<u16>,

    /// Number of Envoy's worker threads; 0 for one per core
    #[arg(long)]
    pub concurrency: Option<i32>,

    /// `connect_timeout` in bootstrap templates
    #[arg(long = "connectTimeout", default_value = "1s", value_parser = duration)]
    pub connect_timeout: Duration,

    /// `refresh_delay` in bootstrap templates
    #[arg(long = "discoveryRefreshDelay", default_value = "1s", value_parser = duration)]
    pub discovery_refresh_delay: Duration,

    /// Drain time of the old Envoy in a hot restart
    #[arg(long = "drainDuration", value_parser = duration)]
    pub drain_duration: Option<Duration>,

    /// Time after which the old Envoy exits in a hot restart
    #[arg(long = "parentShutdownDuration", value_parser = duration)]
    pub parent_shutdown_duration: Option<Duration>,

    /// Address of Zipkin, HOST:PORT
    #[arg(long = "zipkinAddress")]
    pub zipkin_address: Option<String>,

    /// Address of the Lightstep satellites, HOST:PORT
    #[arg(long = "lightstepAddress")]
    pub lightstep_address: Option<String>,

    /// Lightstep access token
    #[arg(long = "lightstepAccessToken")]
    pub lightstep_access_token: Option<String>,

    /// Address of the Datadog agent, HOST:PORT
    #[arg(long = "datadogAgentAddress")]
    pub datadog_agent_address: Option<String>,

    /// UDP address of statsd, HOST:PORT
    #[arg(long = "statsdUdpAddress")]
    pub statsd_udp_address: Option<String>,
}

/// Flags of `pilot-agent request`.
#[derive(Clone, Debug, Args)]
pub struct RequestArgs {
    /// HTTP method: GET, POST, PUT or DELETE
    pub method: String,
    /// Path, such as config_dump
    pub path: String,
    /// Request body
    pub body: Option<String>,
    /// Port on localhost: Envoy's admin port (15000) or 15004, 15020 or 15021 of the agent
    #[arg(long = "debug-port", default_value_t = 15000)]
    pub port: u16,
    /// Timeout of the request
    #[arg(long, default_value = "60s", value_parser = duration)]
    pub timeout: Duration,
}

/// Flags of `pilot-agent wait`.
#[derive(Clone, Debug, Args)]
pub struct WaitArgs {
    /// Total timeout in seconds
    #[arg(long = "timeoutSeconds", default_value_t = 60)]
    pub timeout_seconds: u64,
    /// Timeout of one request in milliseconds
    #[arg(long = "requestTimeoutMillis", default_value_t = 500)]
    pub request_timeout_millis: u64,
    /// Interval between requests in milliseconds
    #[arg(long = "periodMillis", default_value_t = 500)]
    pub period_millis: u64,
    /// Readiness URL
    #[arg(long, default_value = "http://localhost:15021/healthz/ready")]
    pub url: String,
}

/// Arguments of `pilot-agent exec-child`, which only the agent itself runs.
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
    /// Parses a command line. Unknown flags of `proxy` are ignored, as upstream does.
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
    fn pilot_0_8_command_line_is_parsed() {
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
        assert_eq!(args.settings.connect_timeout, Duration::from_secs(10));
        assert!(args.ignored_flags.without_effect.is_empty());
    }

    #[test]
    fn current_command_line_is_parsed_and_unknown_flags_are_ignored() {
        let args = proxy("router --domain x.svc.cluster.local --log_output_level=default:info --new 1 -stsPort=0");
        assert_eq!(args.kind, ProxyType::Router);
        assert_eq!(args.ignored_flags.unknown, ["new"]);
        assert_eq!(args.ignored_flags.without_effect, ["stsPort"]);
        assert!(args.xds_relay && !args.hot_restart);
        assert!(!proxy("--xdsRelay=false").xds_relay && proxy("--hotRestart").hot_restart);
    }

    #[test]
    fn discovery_address_may_be_repeated() {
        let args = proxy("--discoveryAddress a:15010 --discoveryAddress b:15010,c:15010");
        assert_eq!(args.settings.discovery_address, ["a:15010", "b:15010,c:15010"]);
    }

    #[test]
    fn unknown_proxy_type_is_rejected() {
        assert!(Cli::read(["pilot-agent", "proxy", "king"].map(String::from)).is_err());
    }

    #[test]
    fn istio_iptables_flags_are_passed_through() {
        let line = "pilot-agent istio-iptables -p 15001 --dry-run -x".split(' ').map(String::from);
        let AgentCommand::IstioIptables { args } = Cli::read(line).unwrap().command else {
            panic!("not istio-iptables")
        };
        assert_eq!(args, ["-p", "15001", "--dry-run", "-x"]);
    }
}
