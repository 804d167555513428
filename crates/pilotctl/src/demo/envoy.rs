//! The sidecars of the demo: one pilot-agent per workload, which runs Envoy.

use anyhow::Result;

use super::process::{DemoProcess, ProcessStarter};
use super::programs::Programs;
use super::shop::DemoWorkload;

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

/// Starts the agent of a workload, which starts the workload's Envoy.
pub(super) fn start(
    starter: &ProcessStarter<'_>,
    programs: &Programs,
    workload: &DemoWorkload,
    ports: EnvoyPorts,
) -> Result<DemoProcess> {
    let name = workload.name();
    let EnvoyPorts { xds, admin, status } = ports;
    let line = format!(
        "proxy sidecar --ip {} --id {name}.shop --domain shop.svc.cluster.local \
         --serviceCluster {}.shop --discoveryAddress 127.0.0.1:{xds} \
         --proxyAdminPort {admin} --statusPort {status} --concurrency 1 --configPath",
        workload.inbound.ip(),
        workload.app
    );
    let folder = starter.logs.join(&name);
    let mut args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    args.push(folder.to_string_lossy().into_owned());
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
        // An Envoy that dies ends the demo, with the reason.
        ("PILOTAGE_ENVOY_RESTARTS", "0"),
    ];
    starter.start(&format!("agent-{name}"), &programs.agent, &args, &env, &folder)
}
