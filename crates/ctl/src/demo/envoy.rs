//! A real Envoy beside each workload: where the binary is, and the bootstrap that points it at us.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::Workload;
use super::process::Process;

/// The Envoy binary: as given, else `$PILOTAGE_ENVOY`, the cache folder, the PATH.
pub(super) fn find(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = given {
        return Ok(path.to_owned());
    }
    let set = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let user = || set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let cache = set("PILOTAGE_CACHE").or_else(|| user().map(|folder| folder.join("pilotage")));
    let own = set("PILOTAGE_ENVOY").into_iter().chain(cache.map(|folder| folder.join("bin/envoy")));
    let on_path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&on_path).map(|folder| folder.join("envoy"));
    match own.chain(on_path).find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => bail!("no Envoy found: run `make setup`, set PILOTAGE_ENVOY, or give --envoy"),
    }
}

/// Starts the sidecar of a workload at address 127.0.80.`number`.
pub(super) fn start(binary: &Path, workload: &Workload, number: u8, xds: u16, folder: &Path) -> Result<Process> {
    let name = workload.name();
    let config = folder.join(format!("{name}.json"));
    let text = bootstrap(workload, number, xds).to_string();
    std::fs::write(&config, text).with_context(|| format!("could not write {}", config.display()))?;
    let args = ["-c", &config.to_string_lossy(), "--disable-hot-restart", "--concurrency", "1", "-l", "warning"];
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    Process::start(&format!("envoy-{name}"), binary, &args, folder)
}

fn bootstrap(workload: &Workload, number: u8, xds: u16) -> Value {
    let ads = json!({"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"});
    json!({
        "node": node(workload, number),
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
        "dynamic_resources": {
            "ads_config": {
                "api_type": "DELTA_GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": true,
                "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}],
            },
            "cds_config": ads.clone(),
            "lds_config": ads,
        },
        "static_resources": {"clusters": [xds_cluster(xds)]},
    })
}

fn node(workload: &Workload, number: u8) -> Value {
    let ip = format!("127.0.80.{number}");
    let name = workload.name();
    json!({
        "id": format!("sidecar~{ip}~{name}.shop~shop.svc.cluster.local"),
        "cluster": format!("{}.shop", workload.app),
        "metadata": {
            "NAME": name,
            "NAMESPACE": "shop",
            "CLUSTER_ID": "Kubernetes",
            "INSTANCE_IPS": ip,
            "INTERCEPTION_MODE": "NONE",
            "LABELS": {"app": workload.app, "version": workload.version},
        },
    })
}

fn xds_cluster(port: u16) -> Value {
    let address = json!({"socket_address": {"address": "127.0.0.1", "port_value": port}});
    json!({
        "name": "xds-grpc",
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            },
        },
        "load_assignment": {
            "cluster_name": "xds-grpc",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    })
}
