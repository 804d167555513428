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
        Ok(Client::try_from(config(&self.kubeconfig, &self.context).await?)?)
    }
}

/// How to reach the server of a kubeconfig file and one of its contexts. If they are empty, kubectl's defaults apply.
pub(crate) async fn config(kubeconfig: &str, context: &str) -> Result<Config> {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let options = KubeConfigOptions { context: given(context), ..KubeConfigOptions::default() };
    let config = match given(kubeconfig) {
        Some(file) => {
            let kubeconfig =
                Kubeconfig::read_from(&file).with_context(|| format!("could not read kubeconfig {file}"))?;
            Config::from_custom_kubeconfig(kubeconfig, &options).await
        }
        None => Config::from_kubeconfig(&options).await,
    };
    config.context("could not find a server: give --kubeconfig=FILE")
}
