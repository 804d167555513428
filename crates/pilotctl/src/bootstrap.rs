//! `pilotctl bootstrap`: a file with which a stock Envoy, or a gRPC application, connects to pilot-discovery without an
//! agent. Such a proxy has no certificates: it speaks plain text.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

/// Resource that a gRPC server asks for; `%s` is its address.
const SERVER_LISTENER: &str = "xds.istio.io/grpc/lds/inbound/%s";

#[derive(Args)]
pub(crate) struct BootstrapOptions {
    /// What the file is for
    #[arg(value_enum, default_value_t = BootstrapClient::Envoy)]
    client: BootstrapClient,
    /// Addresses of pilot-discovery's plain-text port, HOST:PORT, separated by commas; used in turn
    #[arg(long, default_value = "127.0.0.1:15010", value_delimiter = ',')]
    discovery: Vec<String>,
    /// Name of the workload
    #[arg(long, default_value = "envoy")]
    name: String,
    /// Namespace of the workload
    #[arg(long, default_value = "default")]
    namespace: String,
    /// Address of the workload, by which its services are found
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    ip: IpAddr,
    /// Labels of the workload, by which rules select it: app=cart,version=v1
    #[arg(long, value_delimiter = ',')]
    labels: Vec<String>,
    /// A gateway instead of a sidecar
    #[arg(long)]
    gateway: bool,
    /// Envoy's admin port on 127.0.0.1
    #[arg(long, default_value_t = 15000)]
    admin_port: u16,
}

/// Programs that read a bootstrap file.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BootstrapClient {
    /// An Envoy that runs without pilot-agent
    Envoy,
    /// An application with gRPC's own xDS client ($GRPC_XDS_BOOTSTRAP)
    Grpc,
}

/// Prints the file.
pub(crate) fn run(options: &BootstrapOptions) -> Result<u8> {
    let file = match options.client {
        BootstrapClient::Envoy => envoy(options)?,
        BootstrapClient::Grpc => grpc(options)?,
    };
    println!("{file:#}");
    Ok(0)
}

/// Id and metadata of the workload.
fn node(options: &BootstrapOptions) -> Result<(String, Value)> {
    let BootstrapOptions { name, namespace, ip, .. } = options;
    let kind = if options.gateway { "router" } else { "sidecar" };
    let labels = options.labels.iter().map(|pair| {
        let (key, value) =
            pair.split_once('=').with_context(|| format!("could not parse label {pair:?}: expected KEY=VALUE"))?;
        Ok((key.to_owned(), json!(value)))
    });
    let labels: Map<String, Value> = labels.collect::<Result<_>>()?;
    let mut metadata = json!({
        "NAMESPACE": namespace,
        "LABELS": labels,
        // Nothing redirects the workload's traffic, so listeners open their ports.
        "INTERCEPTION_MODE": "NONE",
    });
    match options.client {
        BootstrapClient::Grpc => metadata["GENERATOR"] = "grpc".into(),
        // Without an agent there is no SDS server.
        BootstrapClient::Envoy => metadata[model::proxy::NO_CERTIFICATES] = "true".into(),
    }
    Ok((format!("{kind}~{ip}~{name}.{namespace}~{namespace}.svc.cluster.local"), metadata))
}

fn envoy(options: &BootstrapOptions) -> Result<Value> {
    let (id, metadata) = node(options)?;
    let endpoints = options.discovery.iter().map(|address| {
        let (host, port) = host_and_port(address)?;
        Ok(json!({"endpoint": {"address": socket(host, port)}}))
    });
    let endpoints: Vec<Value> = endpoints.collect::<Result<_>>()?;
    let source = json!({"ads": {}, "resource_api_version": "V3"});
    let http2 = json!({
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {
            "connection_keepalive": {"interval": "30s", "timeout": "10s"},
        }},
    });
    Ok(json!({
        "node": {"id": id, "cluster": options.name, "metadata": metadata},
        "admin": {"address": socket("127.0.0.1", options.admin_port)},
        "dynamic_resources": {
            "ads_config": {
                "api_type": "DELTA_GRPC",
                "transport_api_version": "V3",
                "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}],
                "set_node_on_first_message_only": true,
            },
            "cds_config": source,
            "lds_config": source,
        },
        "static_resources": {"clusters": [{
            "name": "xds-grpc",
            "type": "STRICT_DNS",
            "connect_timeout": "5s",
            "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2},
            "load_assignment": {"cluster_name": "xds-grpc", "endpoints": [{"lb_endpoints": endpoints}]},
        }]},
    }))
}

fn grpc(options: &BootstrapOptions) -> Result<Value> {
    let (id, metadata) = node(options)?;
    let server = |address: &String| {
        host_and_port(address)?;
        Ok(json!({
            "server_uri": address,
            "channel_creds": [{"type": "insecure"}],
            "server_features": ["xds_v3"],
        }))
    };
    let servers: Vec<Value> = options.discovery.iter().map(server).collect::<Result<_>>()?;
    Ok(json!({
        "xds_servers": servers,
        "node": {"id": id, "metadata": metadata},
        "server_listener_resource_name_template": SERVER_LISTENER,
    }))
}

fn host_and_port(address: &str) -> Result<(&str, u16)> {
    let parts =
        address.rsplit_once(':').and_then(|(host, port)| Some((host.trim_matches(['[', ']']), port.parse().ok()?)));
    match parts {
        Some((host, port)) if !host.is_empty() => Ok((host, port)),
        _ => bail!("could not parse --discovery {address:?}: expected HOST:PORT"),
    }
}

fn socket(host: &str, port: u16) -> Value {
    json!({"socket_address": {"address": host, "port_value": port}})
}
