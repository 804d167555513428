//! The sidecars of the demo: finds the Envoy binary and starts one pilot-agent per workload, which runs Envoy.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::process::DemoProcess;
use super::{DemoWorkload, Programs};

/// Ports of one sidecar on 127.0.0.1.
#[derive(Clone, Copy)]
pub(super) struct EnvoyPorts {
    /// Port of the control plane.
    pub(super) xds: u16,
    /// Envoy's admin port.
    pub(super) admin: u16,
    /// The agent's status port.
    pub(super) status: u16,
}

/// The Envoy binary: as given, else `$PILOTAGE_ENVOY`, the cache folder, the PATH.
pub(crate) fn find(given: Option<&Path>) -> Result<PathBuf> {
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
        None => bail!("could not find an Envoy: run `make setup`, set PILOTAGE_ENVOY, or give --envoy"),
    }
}

/// Starts the agent of a workload at address 127.0.80.`number`, which starts the workload's Envoy.
pub(super) fn start(
    programs: &Programs,
    workload: &DemoWorkload,
    number: u8,
    ports: EnvoyPorts,
    folder: &Path,
) -> Result<DemoProcess> {
    let name = workload.name();
    let EnvoyPorts { xds, admin, status } = ports;
    let line = format!(
        "proxy sidecar --ip 127.0.80.{number} --id {name}.shop --domain shop.svc.cluster.local \
         --serviceCluster {}.shop --discoveryAddress 127.0.0.1:{xds} \
         --proxyAdminPort {admin} --statusPort {status} --concurrency 1 --configPath",
        workload.app
    );
    let mut args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    args.push(folder.join(&name).to_string_lossy().into_owned());
    args.extend(["--binaryPath".to_owned(), programs.envoy.to_string_lossy().into_owned()]);
    let labels = format!(r#"{{"app": "{}", "version": "{}"}}"#, workload.app, workload.version);
    let env = [
        ("ISTIO_METAJSON_LABELS", labels.as_str()),
        ("ISTIO_META_CLUSTER_ID", "Kubernetes"),
        ("POD_NAMESPACE", "shop"),
        ("SERVICE_ACCOUNT", workload.app),
        ("TRUST_DOMAIN", "shop.example"),
        ("ECC_SIGNATURE_ALGORITHM", "ECDSA"),
        // Clients call the sidecar's address; no traffic is redirected.
        ("ISTIO_META_INTERCEPTION_MODE", "NONE"),
        // Five sidecars on one machine cannot share these ports.
        ("ENVOY_STATUS_PORT", "0"),
        ("ENVOY_PROMETHEUS_PORT", "0"),
    ];
    DemoProcess::start(&format!("agent-{name}"), &programs.agent, &args, &env, &folder.join(&name), folder)
}
