//! Options of a client, and their address form: `etcd://HOST:PORT,HOST:PORT/PREFIX`, `etcds://` for TLS.

use std::path::PathBuf;
use std::time::Duration;

/// The port of members whose address has none.
const PORT: u16 = 2379;

/// How to reach a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdOptions {
    /// Members as `host:port`.
    pub members: Vec<String>,
    /// The path of the address, without slashes at its ends.
    pub prefix: String,
    /// `None` for plain text.
    pub tls: Option<EtcdTls>,
    pub user: Option<EtcdUser>,
    /// Time for a request, with all its attempts.
    pub timeout: Duration,
}

/// TLS settings. The files are read for each connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdTls {
    /// CA certificates to trust; those of the operating system by default.
    pub ca_file: Option<PathBuf>,
    /// The client's certificate and key.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
}

/// A user. The file is read each time the client authenticates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdUser {
    pub name: String,
    pub password_file: PathBuf,
}

/// An address that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("could not use {address:?}: {reason}")]
pub struct OptionsError {
    address: String,
    reason: &'static str,
}

impl EtcdOptions {
    /// Whether a text has the form of these addresses.
    pub fn is_address(text: &str) -> bool {
        text.starts_with("etcd://") || text.starts_with("etcds://")
    }

    /// Members, prefix and TLS of an address.
    pub fn parse(address: &str) -> Result<EtcdOptions, OptionsError> {
        let bad = |reason| OptionsError { address: without_user(address), reason };
        let (scheme, rest) = address.split_once("://").ok_or_else(|| bad("expected etcd://HOST:PORT/PREFIX"))?;
        let tls = match scheme {
            "etcd" => None,
            "etcds" => Some(EtcdTls::default()),
            _ => return Err(bad("expected the scheme etcd or etcds")),
        };
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if members.contains('@') {
            return Err(bad("expected no user; give the user and the file of the password by their own flags"));
        }
        if prefix.contains(['?', '#']) {
            return Err(bad("expected no parameters"));
        }
        let members: Option<Vec<String>> = members.split(',').map(member).collect();
        let members = members.ok_or_else(|| bad("expected members as HOST:PORT, separated by commas"))?;
        let prefix = prefix.trim_matches('/').to_owned();
        Ok(EtcdOptions { members, prefix, tls, user: None, timeout: Duration::from_secs(5) })
    }
}

/// The member with its port; `None` if it is no host and port.
fn member(text: &str) -> Option<String> {
    let authority: http::uri::Authority = text.trim().parse().ok()?;
    if authority.host().is_empty() {
        return None;
    }
    match authority.port_u16() {
        Some(port) => Some(format!("{}:{port}", authority.host())),
        // Without a port the host is all; anything else is a port that is no number.
        None => (authority.host() == text.trim()).then(|| format!("{}:{PORT}", authority.host())),
    }
}

/// An address may have a password, which must not appear in messages.
fn without_user(address: &str) -> String {
    match (address.split_once("://"), address.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://...@{rest}"),
        _ => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::EtcdOptions;

    #[test]
    fn addresses_have_members_and_a_prefix() {
        let options = EtcdOptions::parse("etcd://a:1,[::1]:2,c/mesh/east/").unwrap();
        assert_eq!(options.members, ["a:1", "[::1]:2", "c:2379"]);
        assert_eq!((options.prefix.as_str(), options.tls), ("mesh/east", None));
        assert!(EtcdOptions::parse("etcds://a:1").unwrap().tls.is_some());
        assert!(EtcdOptions::is_address("etcds://a") && !EtcdOptions::is_address("/var/etcd"));
    }

    #[test]
    fn unusable_addresses_are_named_without_passwords() {
        for bad in ["etcd://", "etcd://a:x", "etcd://a,,b", "http://a:1", "a:1", "etcd://a:1/x?y=z"] {
            let error = EtcdOptions::parse(bad).unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?}")), "{bad}: {error}");
        }
        let error = EtcdOptions::parse("etcd://me:secret@a:1").unwrap_err().to_string();
        assert!(!error.contains("secret") && error.contains("by their own flags"), "{error}");
    }
}
