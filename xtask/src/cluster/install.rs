//! Installs the definitions of the Gateway API and Pilotage into a cluster, the latter with Helm from the chart.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::machine::{Cluster, output};
use crate::setup;

/// Applies the definitions of the Gateway API's kinds and waits until they are served.
pub(crate) fn gateway_api(cluster: &Cluster) -> Result<()> {
    cluster.apply(&fs::read_to_string(setup::path("gateway-api.yaml")?)?)?;
    cluster.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=120s"]).map(drop)
}

/// The control plane of a cluster that is started for one command.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum ControlPlaneKind {
    #[default]
    Pilotage,
    Istiod,
}

impl ControlPlaneKind {
    pub(crate) fn parse(text: &str) -> Result<ControlPlaneKind> {
        match text {
            "pilotage" => Ok(ControlPlaneKind::Pilotage),
            "istiod" => Ok(ControlPlaneKind::Istiod),
            _ => bail!("unknown control plane {text:?}: pilotage or istiod"),
        }
    }

    /// Installs it with defaults, the definitions of the Gateway API first.
    pub(crate) fn install(self, cluster: &Cluster) -> Result<()> {
        gateway_api(cluster)?;
        match self {
            ControlPlaneKind::Pilotage => ChartRelease::default().install(cluster),
            ControlPlaneKind::Istiod => super::install_istiod(cluster, ""),
        }
    }
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
        let name = match self.values["revision"].as_str() {
            Some(revision) => format!("pilotage-{revision}"),
            None => "pilotage".to_owned(),
        };
        helm.args(["upgrade", "--install", &name, "--namespace=istio-system", "--create-namespace"]);
        helm.args(["--wait", "--timeout=5m", "--values=-"]).arg(cluster.root().join("deploy/chart"));
        helm.env("KUBECONFIG", cluster.kubeconfig());
        output(helm, &self.values.to_string()).context("helm upgrade --install")?;
        Ok(())
    }
}
