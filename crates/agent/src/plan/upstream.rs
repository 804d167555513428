//! How the agent connects to the control plane: TLS, trusted root and token, found by upstream's rules and paths.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::istio::mesh::v1alpha1::{AuthenticationPolicy, ProxyConfig};
use http::{HeaderName, HeaderValue};
use serde_json::Value;

use crate::bootstrap::BootstrapInput;
use crate::certificates::files::CertificateFiles;
use crate::environment::Environment;
use crate::relay::{Pings, Upstream, UpstreamTls};
use crate::settings::discovery_addresses;

/// Token files in order of preference: the audience-bound token, then the service account's.
pub(super) const TOKENS: [&str; 2] =
    ["./var/run/secrets/tokens/istio-token", "/var/run/secrets/kubernetes.io/serviceaccount/token"];
/// Mount path of the mesh's root certificate.
pub(super) const ROOT: &str = "./var/run/secrets/istio/root-cert.pem";
/// The system's CA bundle, for a control plane with a public certificate.
pub(super) const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";

const PLAIN_PORT: &str = ":15010";

/// No TLS: because of the policy, or because port 15010 is always plain text.
pub(super) fn is_plain(config: &ProxyConfig) -> bool {
    config.control_plane_auth_policy == i32::from(AuthenticationPolicy::None)
        || discovery_addresses(config).iter().all(|address| address.ends_with(PLAIN_PORT))
}

pub(super) fn upstream(
    bootstrap_input: &BootstrapInput,
    environment: &Environment,
    certificates: Option<&CertificateFiles>,
) -> Result<Upstream> {
    let config = &bootstrap_input.config;
    let addresses = discovery_addresses(config);
    if !is_plain(config) && addresses.iter().any(|address| address.ends_with(PLAIN_PORT)) {
        bail!(
            "could not use the discovery addresses {}: port 15010 is plain text, the others need TLS",
            addresses.join(", ")
        );
    }
    let tls = (!is_plain(config)).then(|| tls(bootstrap_input, environment, certificates, Path::new(ROOT)));
    let tokens = || TOKENS.iter().map(PathBuf::from).find(|path| path.exists());
    Ok(Upstream {
        address: addresses.first().map_or_else(String::new, |first| (*first).to_owned()),
        others: addresses.iter().skip(1).map(|other| (*other).to_owned()).collect(),
        preferred: Arc::default(),
        token: if tls.is_some() { tokens() } else { None },
        tls,
        headers: headers(bootstrap_input, environment, "XDS_HEADER_")?,
        connect_timeout: Duration::from_secs(5),
        pings: Pings::default(),
    })
}

/// Root, and client certificate of the same place: `$PROV_CERT`, the mounted root of the mesh (without a certificate),
/// else the workload's files, which node metadata names or which are in a known folder such as Pilot 0.8's `/etc/certs`.
pub(super) fn tls(
    bootstrap_input: &BootstrapInput,
    environment: &Environment,
    certificates: Option<&CertificateFiles>,
    mounted: &Path,
) -> UpstreamTls {
    let named = bootstrap_input.node.metadata.get("TLS_CLIENT_ROOT_CERT").and_then(Value::as_str).map(Path::new);
    let (roots, client) = match (environment.get("PROV_CERT").map(Path::new), certificates) {
        (Some(folder), _) => {
            let files = CertificateFiles::in_folder(folder);
            (files.root, Some((files.chain, files.key)))
        }
        (None, Some(files)) if named.map_or(!mounted.exists(), |root| root == files.root) => {
            (files.root.clone(), Some((files.chain.clone(), files.key.clone())))
        }
        (None, _) => (named.unwrap_or(mounted).to_owned(), None),
    };
    let roots = match environment.get("XDS_ROOT_CA") {
        Some("SYSTEM") => PathBuf::from(SYSTEM_ROOTS),
        Some(path) => PathBuf::from(path),
        None => roots,
    };
    UpstreamTls { roots, names: bootstrap_input.control_plane_names.clone(), client }
}

/// The cluster's id, and the variables with this prefix.
pub(super) fn headers(
    bootstrap_input: &BootstrapInput,
    environment: &Environment,
    prefix: &'static str,
) -> Result<Vec<(HeaderName, HeaderValue)>> {
    let cluster = bootstrap_input.node.metadata.get("CLUSTER_ID").and_then(Value::as_str).map(|id| ("clusterid", id));
    let pair = |(name, value): (&str, &str)| -> Result<(HeaderName, HeaderValue)> {
        let read = || -> Result<_> { Ok((name.to_ascii_lowercase().parse()?, value.parse()?)) };
        read().with_context(|| format!("could not use {prefix}{name} as a header"))
    };
    cluster.into_iter().chain(environment.with_prefix(prefix)).map(pair).collect()
}
