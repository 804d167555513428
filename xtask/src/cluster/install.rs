//! Installs the definitions of the Gateway API and Pilotage into a cluster, the latter with Helm from the chart.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::machine::{Cluster, output};
use crate::setup;

/// Applies the definitions of the Gateway API's kinds and waits until they are served.
pub(crate) fn gateway_api(cluster: &Cluster) -> Result<()> {
    cluster.apply(&fs::read_to_string(setup::path("gateway-api.yaml")?)?)?;
    cluster.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=120s"]).map(drop)
}

/// What is installed, as values of the chart over our own defaults.
pub(crate) struct ChartRelease {
    pub(crate) values: Value,
}

impl Default for ChartRelease {
    fn default() -> ChartRelease {
        ChartRelease::with(json!({}))
    }
}

impl ChartRelease {
    /// With further values; a section replaces the default one.
    pub(crate) fn with(values: Value) -> ChartRelease {
        let mut all = json!({
            "minReplicas": 1,
            "registerCRDs": true,
            "meshConfig": {"accessLogFile": "/dev/stdout"},
            "env": {"PILOT_ENABLE_ALPHA_GATEWAY_API": "true"},
        });
        if let (Some(all), Some(values)) = (all.as_object_mut(), values.as_object()) {
            all.extend(values.clone());
        }
        ChartRelease { values: all }
    }

    /// Installs or upgrades the release and waits until it is ready.
    pub(crate) fn install(&self, cluster: &Cluster) -> Result<()> {
        let mut helm = Command::new(setup::path("helm")?);
        helm.args(["upgrade", "--install", "pilotage", "--namespace=istio-system", "--create-namespace"]);
        helm.args(["--wait", "--timeout=5m", "--values=-"]).arg(cluster.root().join("deploy/chart"));
        helm.env("KUBECONFIG", cluster.kubeconfig());
        output(helm, &self.values.to_string()).context("helm upgrade --install")?;
        Ok(())
    }
}
