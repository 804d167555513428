//! Access control of the Unix sockets: which users may connect and which files SDS may serve. The defaults are strict.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{SocketPeers, ingress_certificates, text};
use crate::certificates::files::CertificateFiles;
use crate::environment::Environment;
use crate::file_secrets::access::FileAccess;
use crate::identity::metadata::ProxyNode;
use crate::relay::Upstream;
use crate::socket::AllowedPeers;

/// Comma-separated user ids that may connect in addition to the agent's own.
const USERS: &str = "PILOTAGE_SOCKET_USERS";
/// Comma-separated directories with certificates, in addition to the default ones.
const FOLDERS: &str = "PILOTAGE_SECRET_FOLDERS";

/// Node metadata keys that name certificate files.
const METADATA: [&str; 6] = [
    "TLS_CLIENT_CERT_CHAIN",
    "TLS_CLIENT_KEY",
    "TLS_CLIENT_ROOT_CERT",
    "TLS_SERVER_CERT_CHAIN",
    "TLS_SERVER_KEY",
    "TLS_SERVER_ROOT_CERT",
];

/// The agent's own user and those in PILOTAGE_SOCKET_USERS. The xDS socket is open to all users if proxyless gRPC
/// applications use it.
pub(super) fn peers(environment: &Environment) -> Result<SocketPeers> {
    let read = |text: &str| {
        text.parse::<u32>().with_context(|| format!("could not parse ${USERS}: {text:?} is not a user id"))
    };
    let users: BTreeSet<u32> = listed(environment, USERS).map(read).collect::<Result<_>>()?;
    let sds = if users.is_empty() { AllowedPeers::Own } else { AllowedPeers::Also(users) };
    let xds = if environment.get("GRPC_XDS_BOOTSTRAP").is_some() { AllowedPeers::Any } else { sds.clone() };
    Ok(SocketPeers { sds, xds })
}

/// Certificate files from the agent's own settings, and the directories in PILOTAGE_SECRET_FOLDERS.
pub(super) fn access(
    environment: &Environment,
    certificates: Option<&CertificateFiles>,
    upstream: Option<&Upstream>,
    node: &ProxyNode,
) -> FileAccess {
    let tls = upstream.and_then(|upstream| upstream.tls.as_ref());
    let client = tls.and_then(|tls| tls.client.clone()).into_iter().flat_map(|(chain, key)| [chain, key]);
    let by_metadata = METADATA.iter().filter_map(|name| text(node, name)).filter(|path| !path.is_empty());
    let own = certificates.map(CertificateFiles::paths).unwrap_or_default().into_iter();
    let own = own
        .chain(ingress_certificates(environment))
        .chain(tls.map(|tls| tls.roots.clone()))
        .chain(client)
        .chain(by_metadata.map(PathBuf::from));
    FileAccess::new(own, listed(environment, FOLDERS).map(PathBuf::from))
}

fn listed<'a>(environment: &'a Environment, name: &str) -> impl Iterator<Item = &'a str> {
    environment.get(name).unwrap_or_default().split(',').map(str::trim).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{AllowedPeers, FOLDERS, USERS, listed, peers};
    use crate::environment::Environment;

    #[test]
    fn hole_10_sockets_are_private_unless_configured_otherwise() {
        let of = |pairs: &[(&str, &str)]| peers(&pairs.iter().copied().collect());
        let own = of(&[]).unwrap();
        assert_eq!((own.sds, own.xds), (AllowedPeers::Own, AllowedPeers::Own));
        let users = of(&[(USERS, "1337, 1000")]).unwrap();
        assert_eq!((&users.sds, &users.xds), (&AllowedPeers::Also([1000, 1337].into()), &users.sds));
        let applications = of(&[("GRPC_XDS_BOOTSTRAP", "/etc/istio/proxy/grpc-bootstrap.json")]).unwrap();
        assert_eq!((applications.sds, applications.xds), (AllowedPeers::Own, AllowedPeers::Any));
        assert!(of(&[(USERS, "root")]).unwrap_err().to_string().contains("root"));
        let environment: Environment = [(FOLDERS, "/opt/certs,,/srv/tls ")].into_iter().collect();
        assert_eq!(listed(&environment, FOLDERS).collect::<Vec<_>>(), ["/opt/certs", "/srv/tls"]);
    }
}
