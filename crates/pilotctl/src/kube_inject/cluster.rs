//! Settings of the injector from the ConfigMaps of a cluster.

use anyhow::{Context, Result, anyhow};
use clap::Args;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};

use crate::cluster::ClusterAccess;

#[derive(Args)]
pub(crate) struct ClusterOptions {
    /// Revision of the control plane
    #[arg(short, long, default_value = "")]
    revision: String,

    /// Namespace of the control plane
    #[arg(short = 'i', long = "istioNamespace", default_value = "istio-system")]
    istio_namespace: String,

    /// ConfigMap of the mesh configuration; default: istio, with the revision
    #[arg(long = "meshConfigMapName", default_value = "")]
    mesh_config_map: String,

    /// ConfigMap of the injector's configuration and values; default: istio-sidecar-injector, with the revision
    #[arg(long = "injectConfigMapName", default_value = "")]
    inject_config_map: String,

    #[command(flatten)]
    access: ClusterAccess,
}

/// The content of the ConfigMaps.
#[derive(Default)]
pub(super) struct ClusterTexts {
    pub(super) mesh: String,
    pub(super) inject: String,
    pub(super) values: String,
}

impl ClusterOptions {
    /// The revision that templates see: empty for the default one, as upstream's.
    pub(super) fn revision(&self) -> &str {
        if self.revision == "default" { "" } else { &self.revision }
    }

    /// Reads both ConfigMaps.
    pub(super) async fn texts(&self) -> Result<ClusterTexts> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client().await?, &self.istio_namespace);
        let mesh_name = self.name(&self.mesh_config_map, "istio");
        let injector_name = self.name(&self.inject_config_map, "istio-sidecar-injector");
        let mesh = self.get(&maps, &mesh_name).await?;
        let injector = self.get(&maps, &injector_name).await?;
        Ok(ClusterTexts {
            mesh: self.key(&mesh, &mesh_name, "mesh")?,
            inject: self.key(&injector, &injector_name, "config")?,
            values: self.key(&injector, &injector_name, "values")?,
        })
    }

    fn name(&self, given: &str, default: &str) -> String {
        match (given, &*self.revision) {
            ("", "" | "default") => default.to_owned(),
            ("", revision) => format!("{default}-{revision}"),
            (given, _) => given.to_owned(),
        }
    }

    async fn client(&self) -> Result<Client> {
        self.access.client().await.context(
            "could not get the settings of the injector: give --meshConfigFile, --injectConfigFile and --valuesFile, or a \
             kubeconfig",
        )
    }

    async fn get(&self, maps: &Api<ConfigMap>, name: &str) -> Result<ConfigMap> {
        maps.get(name).await.with_context(|| format!("could not get ConfigMap {}/{name}", self.istio_namespace))
    }

    fn key(&self, map: &ConfigMap, name: &str, key: &str) -> Result<String> {
        let found = map.data.as_ref().and_then(|data| data.get(key)).cloned();
        found.ok_or_else(|| anyhow!("ConfigMap {}/{name} has no key {key}", self.istio_namespace))
    }
}
