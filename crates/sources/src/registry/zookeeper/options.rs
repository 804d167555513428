//! Options of a ZooKeeper registry in the file of `--registryConfig`.

use std::path::PathBuf;
use std::time::Duration;

use model::names::ClusterId;
use serde::Deserialize;

use crate::registry::instances::mapping::MappingOptions;
use crate::registry::normalize;
use crate::registry::options_error::OptionsError;
use crate::registry::shared_options::{GoDuration, TlsOptions};

/// The port of servers whose address has none.
const PORT: u16 = 2181;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct ZooKeeperOptions {
    /// Servers of one ensemble as `HOST:PORT`. One is used until it fails.
    pub addresses: Vec<String>,
    /// A user of the digest scheme.
    pub username: String,
    /// File with the password; read for each connection.
    pub password_file: Option<PathBuf>,
    /// Connect with TLS, to the secure port of the servers.
    pub tls: Option<TlsOptions>,
    /// How services are stored.
    pub layout: ZooKeeperLayout,
    /// The folder of the services: `/services` or `/dubbo` by default.
    pub path: Option<String>,
    /// Template of host names: `{service}` is replaced. By default `{service}.zookeeper`, and `{service}.dubbo` for
    /// Dubbo.
    pub host: Option<String>,
    /// The mesh namespace of the services.
    pub namespace: String,
    /// The service port, in place of the port of the instances.
    pub service_port: Option<u16>,
    /// Protocol of instances without one; empty for protocol detection.
    pub protocol: String,
    /// The trust domain of SPIFFE identities.
    pub trust_domain: String,
    /// A server that is silent for two thirds of this time is taken for dead.
    pub session_timeout: GoDuration,
}

/// How services are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ZooKeeperLayout {
    /// Curator's service discovery, which Spring Cloud and Dubbo 3 (by application) use: `/services/SERVICE/ID` with an
    /// instance as JSON.
    #[default]
    Curator,
    /// Dubbo by interface: `/dubbo/INTERFACE/providers/URL`.
    Dubbo,
}

impl Default for ZooKeeperOptions {
    fn default() -> ZooKeeperOptions {
        ZooKeeperOptions {
            addresses: Vec::new(),
            username: String::new(),
            password_file: None,
            tls: None,
            layout: ZooKeeperLayout::default(),
            path: None,
            host: None,
            namespace: "default".to_owned(),
            service_port: None,
            protocol: String::new(),
            trust_domain: "cluster.local".to_owned(),
            session_timeout: GoDuration(Duration::from_secs(30)),
        }
    }
}

impl ZooKeeperOptions {
    /// Checks values that their types cannot.
    pub(super) fn checked(&self) -> Result<(), OptionsError> {
        if self.addresses.is_empty() {
            return Err(OptionsError::NoAddress);
        }
        if let Some(value) =
            self.addresses.iter().find(|address| address.contains(['/', ' ', '@']) || address.is_empty())
        {
            return Err(OptionsError::Invalid { field: "addresses", value: value.clone(), expected: "HOST:PORT" });
        }
        let root = self.root();
        if !root.starts_with('/') || root.contains("//") || root.len() < 2 {
            let expected = "a path such as /services";
            return Err(OptionsError::Invalid { field: "path", value: root.to_owned(), expected });
        }
        if self.username.is_empty() != self.password_file.is_none() {
            let reason = "username and passwordFile must be given together";
            return Err(OptionsError::Missing { field: "passwordFile", reason });
        }
        if self.tls.as_ref().is_some_and(|tls| tls.cert_file.is_some() != tls.key_file.is_some()) {
            return Err(OptionsError::Missing { field: "tls", reason: "certFile and keyFile must be given together" });
        }
        normalize::check_host(self.host(), &[("service", "a")])
    }

    /// The folder of the services, without a slash at its end.
    pub(super) fn root(&self) -> &str {
        let default = match self.layout {
            ZooKeeperLayout::Curator => "/services",
            ZooKeeperLayout::Dubbo => "/dubbo",
        };
        self.path.as_deref().unwrap_or(default).trim_end_matches('/')
    }

    fn host(&self) -> &str {
        let default = match self.layout {
            ZooKeeperLayout::Curator => "{service}.zookeeper",
            ZooKeeperLayout::Dubbo => "{service}.dubbo",
        };
        self.host.as_deref().unwrap_or(default)
    }

    /// A server with its port. A number after the last colon is a port, unless it belongs to an IPv6 address.
    pub(super) fn server(&self, number: usize) -> String {
        let address = &self.addresses[number % self.addresses.len()];
        let has_port = address.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
        if has_port { address.clone() } else { format!("{address}:{PORT}") }
    }

    pub(super) fn mapping(&self, cluster: ClusterId) -> MappingOptions {
        MappingOptions {
            registry: super::REGISTRY,
            host: self.host().to_owned(),
            namespace: self.namespace.clone(),
            service_port: self.service_port,
            protocol: self.protocol.clone(),
            trust_domain: self.trust_domain.clone(),
            cluster,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ZooKeeperOptions;

    fn error(text: &str) -> String {
        let options: ZooKeeperOptions = serde_saphyr::from_str(text).unwrap();
        options.checked().err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn options_are_checked() {
        assert_eq!(error("addresses: ['10.0.0.1:2181', zoo]"), "");
        assert!(error("layout: dubbo").contains("no address"));
        assert!(error("addresses: ['zoo:2181/chroot']").contains("HOST:PORT"));
        assert!(error("{addresses: [zoo], path: services}").contains("a path such as"));
        assert!(error("{addresses: [zoo], path: /}").contains("a path such as"));
        assert!(error("{addresses: [zoo], username: me}").contains("passwordFile"));
        assert!(error("{addresses: [zoo], tls: {certFile: a}}").contains("together"));
    }

    #[test]
    fn servers_have_a_port() {
        let options: ZooKeeperOptions =
            serde_saphyr::from_str("addresses: [zoo, 'zoo:99', '[::1]', '[::1]:99']").unwrap();
        assert_eq!(
            [0, 1, 2, 3, 4].map(|n| options.server(n)),
            ["zoo:2181", "zoo:99", "[::1]:2181", "[::1]:99", "zoo:2181"]
        );
    }
}
