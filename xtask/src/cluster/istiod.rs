//! Installs istiod, with the chart of its release, to compare it with Pilotage and to migrate from it. The proxies are the
//! same: our agent and Envoy.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::machine::{Cluster, output};
use crate::setup;

const NAMESPACE: &str = "istio-system";
/// Folders of upstream's charts.
const DEFINITIONS: &str = "manifests/charts/base/files/crd-all.gen.yaml";
const CHART: &str = "manifests/charts/istio-control/istio-discovery";

/// Installs istiod as a revision, or without one, and waits until it is ready.
pub(crate) fn install_istiod(cluster: &Cluster, revision: &str) -> Result<()> {
    let missing = setup::run(cluster.root(), &["istiod"])?;
    anyhow::ensure!(missing.is_empty(), "could not obtain istiod");
    let source = setup::istio_source(cluster.root())?;
    let definitions = source.join(DEFINITIONS);
    let text = fs::read_to_string(&definitions).with_context(|| format!("could not read {}", definitions.display()))?;
    cluster.apply(&text)?;
    cluster.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=120s"])?;
    let name = if revision.is_empty() { "istiod".to_owned() } else { format!("istiod-{revision}") };
    let mut helm = Command::new(setup::path("helm")?);
    helm.args(["upgrade", "--install", &name, "--namespace", NAMESPACE, "--create-namespace"]);
    helm.args(["--wait", "--timeout=5m", "--values=-"]).arg(source.join(CHART));
    helm.env("KUBECONFIG", cluster.kubeconfig());
    output(helm, &values(revision).to_string()).context("helm upgrade --install istiod")?;
    Ok(())
}

/// Values of upstream's chart. Filters that only Istio's build of Envoy has are off.
fn values(revision: &str) -> Value {
    json!({
        "revision": revision,
        "image": "mesh/istiod:local",
        "autoscaleMin": 1,
        "telemetry": {"enabled": false},
        "meshConfig": {"accessLogFile": "/dev/stdout"},
        "env": {
            "PILOT_ENABLE_ALPHA_GATEWAY_API": "true",
            "PILOT_ENABLE_ALPN_FILTER": "false",
            "PILOT_ENABLE_METADATA_EXCHANGE": "false",
        },
        "global": {
            "hub": "mesh",
            "tag": "local",
            "proxy": {"image": "proxyv2"},
            "proxy_init": {"image": "proxyv2"},
        },
    })
}
