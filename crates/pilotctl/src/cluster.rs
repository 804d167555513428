//! How a cluster is reached: the flags that name a kubeconfig.

use anyhow::{Context, Result};
use clap::Args;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// A kubeconfig and its context.
#[derive(Args)]
pub(crate) struct ClusterAccess {
    /// Kubeconfig file
    #[arg(short = 'c', long, default_value = "")]
    kubeconfig: String,

    /// Context of the kubeconfig file
    #[arg(long, default_value = "")]
    context: String,
}

impl ClusterAccess {
    pub(crate) async fn client(&self) -> Result<Client> {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let options = KubeConfigOptions { context: given(&self.context), ..KubeConfigOptions::default() };
        let config = match given(&self.kubeconfig) {
            Some(file) => {
                let kubeconfig =
                    Kubeconfig::read_from(&file).with_context(|| format!("could not read kubeconfig {file}"))?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await
            }
            None => Config::from_kubeconfig(&options).await,
        };
        Ok(Client::try_from(config.context("could not find a cluster: give --kubeconfig=FILE")?)?)
    }
}
