//! Whether and how the workload's certificate is obtained from the certificate authority, by upstream's variables.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use tracing::warn;

use super::upstream;
use crate::bootstrap::BootstrapInput;
use crate::certificates::files::CertificateFiles;
use crate::certificates::issued::{CaSettings, WorkloadKey};
use crate::environment::Environment;
use crate::identity::ProxyIdentity;
use crate::relay::{Pings, Upstream};
use crate::settings::discovery_addresses;

/// The only CA provider that is supported.
const CITADEL: &str = "Citadel";
/// Name of a control plane that is reached through localhost.
const LOCAL_NAME: &str = "istiod.istio-system.svc";
const DAY: Duration = Duration::from_secs(24 * 3600);

/// `None` if the workload has certificate files, or if there is no CA behind TLS.
pub(super) fn settings(
    input: &BootstrapInput,
    identity: &ProxyIdentity,
    certificates: Option<&CertificateFiles>,
    environment: &Environment,
) -> Result<Option<CaSettings>> {
    let is_off =
        environment.flag("FILE_MOUNTED_CERTS", false)? || environment.get("PILOT_CERT_PROVIDER") == Some("none");
    if is_off || certificates.is_some() {
        return Ok(None);
    }
    if let Some(provider) = environment.get("CA_PROVIDER").filter(|provider| *provider != CITADEL) {
        warn!(provider, "no certificates are requested: only the CA provider {CITADEL} is supported");
        return Ok(None);
    }
    let Some(upstream) = ca_upstream(input, environment)? else { return Ok(None) };
    let ratio = |name: &str, default: f64| environment.number(name, default).map(|value| value.clamp(0.0, 1.0));
    let account = environment.get("SERVICE_ACCOUNT").unwrap_or("default");
    let namespace = environment.get("POD_NAMESPACE").unwrap_or(&identity.namespace);
    let domain = environment.get("TRUST_DOMAIN").unwrap_or("cluster.local");
    Ok(Some(CaSettings {
        upstream,
        identity: format!("spiffe://{domain}/ns/{namespace}/sa/{account}"),
        lifetime: environment.duration("SECRET_TTL", DAY)?,
        grace_ratio: ratio("SECRET_GRACE_PERIOD_RATIO", 0.5)?,
        grace_jitter: ratio("SECRET_GRACE_PERIOD_RATIO_JITTER", 0.01)?,
        key: workload_key(environment)?,
        pkcs8: environment.flag("PKCS8_KEY", false)?,
        signer: environment.get("ISTIO_META_CERT_SIGNER").map(str::to_owned),
        output: environment.get("OUTPUT_CERTS").map(PathBuf::from),
        output_is_shared: environment.get("KUBERNETES_SERVICE_HOST").is_some(),
    }))
}

/// The address of the CA is that of the control plane unless `CA_ADDR` is set. Certificates are never requested in plain
/// text.
fn ca_upstream(input: &BootstrapInput, environment: &Environment) -> Result<Option<Upstream>> {
    let own = environment.get("CA_ADDR");
    let address = match own {
        Some(address) => address,
        None if upstream::is_plain(&input.config) => return Ok(None),
        None => discovery_addresses(&input.config).first().copied().unwrap_or_default(),
    };
    if address.ends_with(":15010") {
        warn!(address, "no certificates are requested: the address of the CA is a plain-text port");
        return Ok(None);
    }
    let mut tls = upstream::tls(input, environment, None, Path::new(upstream::ROOT));
    if own.is_some() {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
        tls.names = vec![if host.contains("localhost") { LOCAL_NAME } else { host }.to_owned()];
    }
    match environment.get("CA_ROOT_CA") {
        Some("SYSTEM") => tls.roots = upstream::SYSTEM_ROOTS.into(),
        Some(path) => tls.roots = path.into(),
        None => {}
    }
    let found = upstream::TOKENS.iter().find(|path| Path::new(path).exists());
    // A token that is not there yet may be mounted later.
    let token = found.copied().unwrap_or(upstream::TOKENS[0]);
    let others = if own.is_some() { Vec::new() } else { discovery_addresses(&input.config).split_off(1) };
    Ok(Some(Upstream {
        address: address.to_owned(),
        others: others.into_iter().map(str::to_owned).collect(),
        preferred: Arc::default(),
        token: Some(token.into()),
        tls: Some(tls),
        headers: upstream::headers(input, environment, "CA_HEADER_")?,
        connect_timeout: Duration::from_secs(5),
        pings: Pings::default(),
    }))
}

fn workload_key(environment: &Environment) -> Result<WorkloadKey> {
    match (environment.get("ECC_SIGNATURE_ALGORITHM"), environment.get("ECC_CURVE").unwrap_or("P256")) {
        (None, _) => Ok(WorkloadKey::Rsa(environment.number("WORKLOAD_RSA_KEY_SIZE", 2048)?)),
        (Some("ECDSA"), "P256") => Ok(WorkloadKey::P256),
        (Some("ECDSA"), "P384") => Ok(WorkloadKey::P384),
        (Some("ECDSA"), curve) => bail!("could not use ECC_CURVE={curve}: expected P256 or P384"),
        (Some(other), _) => bail!("could not use ECC_SIGNATURE_ALGORITHM={other}: expected ECDSA"),
    }
}

#[cfg(test)]
mod tests {
    use super::LOCAL_NAME;
    use crate::args::{AgentCommand, Cli};
    use crate::certificates::issued::{CaSettings, WorkloadKey};
    use crate::plan::plan;

    fn ca(address: &str, variables: &[(&str, &str)]) -> Option<CaSettings> {
        let line = format!("pilot-agent proxy sidecar --ip 10.0.0.1 --id a.shop --discoveryAddress {address}");
        let Ok(Cli { command: AgentCommand::Proxy(args) }) = Cli::read(line.split(' ').map(str::to_owned)) else {
            panic!("not a proxy command");
        };
        plan(&args, &variables.iter().copied().collect()).unwrap().ca
    }

    #[test]
    fn the_ca_is_at_the_control_plane_unless_another_address_is_given() {
        let found = ca("istiod.istio-system.svc:15012", &[("POD_NAMESPACE", "shop"), ("SERVICE_ACCOUNT", "front")]);
        let found = found.unwrap();
        assert_eq!(found.identity, "spiffe://cluster.local/ns/shop/sa/front");
        assert_eq!((&*found.upstream.address, found.key), ("istiod.istio-system.svc:15012", WorkloadKey::Rsa(2048)));
        let other = ca("istiod:15010", &[("CA_ADDR", "ca.example:443"), ("ECC_SIGNATURE_ALGORITHM", "ECDSA")]).unwrap();
        assert_eq!((&*other.upstream.address, other.key), ("ca.example:443", WorkloadKey::P256));
        assert_eq!(other.upstream.tls.unwrap().names, ["ca.example"]);
        let names = |address| ca("istiod:15012", &[("CA_ADDR", address)]).unwrap().upstream.tls.unwrap().names;
        assert_eq!((names("[::1]:15012"), names("localhost:15012")), (vec!["::1".into()], vec![LOCAL_NAME.into()]));
    }

    #[test]
    fn certificates_are_never_requested_in_plain_text_or_next_to_files() {
        assert!(ca("istiod:15010", &[]).is_none());
        assert!(ca("istiod:15012", &[("CA_ADDR", "istiod:15010")]).is_none());
        assert!(ca("istiod:15012", &[("FILE_MOUNTED_CERTS", "true")]).is_none());
        assert!(ca("istiod:15012", &[("CA_PROVIDER", "Other")]).is_none());
    }
}
