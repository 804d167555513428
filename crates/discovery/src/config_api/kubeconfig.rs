//! `pilot-discovery config-api kubeconfig`: a kubeconfig with the CA and a token of the configuration API.

use std::fs;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::files::ApiFiles;
use crate::args::config_api::KubeconfigFlags;

/// The kubeconfig as YAML.
pub fn kubeconfig(flags: &KubeconfigFlags) -> Result<String> {
    if !flags.server.starts_with("https://") {
        bail!(
            "could not make a kubeconfig for {:?}: expected an address such as https://127.0.0.1:15020",
            flags.server
        );
    }
    let files = ApiFiles::of_kubeconfig(flags);
    let ca_file = flags.ca_file.clone().unwrap_or_else(|| files.ca_file());
    let missing = "the server makes it at its first start; give --configStorage of the server";
    let ca = fs::read(&ca_file).with_context(|| format!("could not read {}: {missing}", ca_file.display()))?;
    let token_file = files.token_file();
    let text = fs::read_to_string(&token_file);
    let text = text.with_context(|| format!("could not read {}: {missing}", token_file.display()))?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut entries = lines.by_ref().filter_map(|line| {
        let mut parts = line.splitn(4, ',').map(str::trim);
        Some((parts.next()?, parts.next()?))
    });
    let found = entries.find(|(_, user)| flags.user.is_empty() || *user == flags.user);
    let Some((token, user)) = found else {
        bail!("could not find a token of user {:?} in {}", flags.user, token_file.display());
    };
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "pilotage",
            "cluster": {"server": flags.server, "certificate-authority-data": STANDARD.encode(ca)},
        }],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{
            "name": "pilotage",
            "context": {"cluster": "pilotage", "user": user, "namespace": flags.namespace},
        }],
        "current-context": "pilotage",
    });
    serde_saphyr::to_string(&document).context("could not write the kubeconfig")
}
