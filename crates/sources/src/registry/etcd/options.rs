//! Options of an etcd registry in the file of `--registryConfig`.

use std::path::PathBuf;
use std::time::Duration;

use etcd::{EtcdOptions, EtcdTls, EtcdUser};
use model::names::ClusterId;
use serde::Deserialize;

use super::layout::EtcdLayout;
use crate::registry::instances::mapping::MappingOptions;
use crate::registry::normalize;
use crate::registry::options_error::OptionsError;
use crate::registry::shared_options::{GoDuration, TlsOptions};

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct EtcdRegistryOptions {
    /// Members of one cluster, such as `https://10.0.0.1:2379`. The scheme is the same for all.
    pub addresses: Vec<String>,
    pub username: String,
    /// File with the password; read each time the client authenticates.
    pub password_file: Option<PathBuf>,
    pub tls: TlsOptions,
    /// How services are stored.
    pub layout: EtcdLayout,
    /// Prefix of the keys; that of the layout by default.
    pub prefix: Option<String>,
    /// Template of host names: `{service}` is replaced. By default `{service}` for SkyDNS, `{service}.dubbo` for Dubbo,
    /// and `{service}.etcd`.
    pub host: Option<String>,
    /// The mesh namespace of the services.
    pub namespace: String,
    /// The service port, in place of the port of the instances.
    pub service_port: Option<u16>,
    /// Protocol of instances without one; empty for protocol detection.
    pub protocol: String,
    /// The trust domain of SPIFFE identities.
    pub trust_domain: String,
    /// Time for a request, with all its attempts.
    pub timeout: GoDuration,
}

impl Default for EtcdRegistryOptions {
    fn default() -> EtcdRegistryOptions {
        EtcdRegistryOptions {
            addresses: Vec::new(),
            username: String::new(),
            password_file: None,
            tls: TlsOptions::default(),
            layout: EtcdLayout::default(),
            prefix: None,
            host: None,
            namespace: "default".to_owned(),
            service_port: None,
            protocol: String::new(),
            trust_domain: "cluster.local".to_owned(),
            timeout: GoDuration(Duration::from_secs(10)),
        }
    }
}

impl EtcdRegistryOptions {
    /// Checks values that their types cannot.
    pub(super) fn checked(&self) -> Result<(), OptionsError> {
        if self.addresses.is_empty() {
            return Err(OptionsError::NoAddress);
        }
        let is_secure = |address: &String| address.starts_with("https://");
        if let Some(other) = self.addresses.iter().find(|address| is_secure(address) != is_secure(&self.addresses[0])) {
            let expected = "of the same scheme as the first address";
            return Err(OptionsError::Invalid { field: "addresses", value: other.clone(), expected });
        }
        if self.tls.server_name.is_some() {
            let reason = "the host of the address is the expected name; serverName cannot be set for etcd";
            return Err(OptionsError::Missing { field: "tls", reason });
        }
        if self.tls.cert_file.is_some() != self.tls.key_file.is_some() {
            return Err(OptionsError::Missing { field: "tls", reason: "certFile and keyFile must be given together" });
        }
        if self.username.is_empty() != self.password_file.is_none() {
            let reason = "username and passwordFile must be given together";
            return Err(OptionsError::Missing { field: "passwordFile", reason });
        }
        if self.key_prefix().is_empty() {
            let reason =
                "the keys of the layout grpc begin with the name of their service; give their common beginning";
            return Err(OptionsError::Missing { field: "prefix", reason });
        }
        self.client_options()?;
        normalize::check_host(self.host(), &[("service", "a")])
    }

    /// The beginning of all keys, which ends with a slash.
    pub(super) fn key_prefix(&self) -> String {
        let prefix = self.prefix.as_deref().unwrap_or(self.layout.prefix());
        let prefix = prefix.trim_end_matches('/');
        if prefix.is_empty() { String::new() } else { format!("{prefix}/") }
    }

    fn host(&self) -> &str {
        self.host.as_deref().unwrap_or(self.layout.host())
    }

    pub(super) fn client_options(&self) -> Result<EtcdOptions, OptionsError> {
        let is_secure = self.addresses.iter().any(|address| address.starts_with("https://"));
        let plain = |address: &String| {
            let rest = address.trim_start_matches("https://").trim_start_matches("http://");
            rest.trim_end_matches('/').to_owned()
        };
        let members = self.addresses.iter().map(plain).collect::<Vec<_>>().join(",");
        let scheme = if is_secure { "etcds" } else { "etcd" };
        let expected = "a list of members such as http://10.0.0.1:2379";
        let parsed = EtcdOptions::parse(&format!("{scheme}://{members}")).map_err(|_| OptionsError::Invalid {
            field: "addresses",
            value: self.addresses.join(","),
            expected,
        })?;
        let TlsOptions { ca_file, cert_file, key_file, .. } = self.tls.clone();
        let user =
            self.password_file.clone().map(|password_file| EtcdUser { name: self.username.clone(), password_file });
        Ok(EtcdOptions {
            tls: parsed.tls.map(|_| EtcdTls { ca_file, cert_file, key_file }),
            user,
            timeout: self.timeout.0,
            ..parsed
        })
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
    use super::{EtcdLayout, EtcdRegistryOptions};

    fn error(text: &str) -> String {
        let options: EtcdRegistryOptions = serde_saphyr::from_str(text).unwrap();
        options.checked().err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn options_are_checked() {
        assert_eq!(error("addresses: [http://10.0.0.1:2379]"), "");
        assert_eq!(error("addresses: [10.0.0.1, '10.0.0.2:2379']"), "");
        assert!(error("layout: goMicro").contains("no address"));
        assert!(error("addresses: [http://a, https://b]").contains("of the same scheme"));
        assert!(error("addresses: ['http://a:x']").contains("a list of members"));
        assert!(error("{addresses: [a], layout: grpc}").contains("prefix is missing"));
        assert!(error("{addresses: [a], username: me}").contains("passwordFile"));
        assert!(error("{addresses: [a], host: x}").contains("{service}"));
    }

    #[test]
    fn the_prefix_ends_with_a_slash() {
        let of = |layout, prefix: Option<&str>| {
            EtcdRegistryOptions { layout, prefix: prefix.map(str::to_owned), ..EtcdRegistryOptions::default() }
                .key_prefix()
        };
        assert_eq!(of(EtcdLayout::SkyDns, None), "/skydns/");
        assert_eq!(of(EtcdLayout::Grpc, Some("shop")), "shop/");
        assert_eq!(of(EtcdLayout::Kratos, Some("/team//")), "/team/");
    }
}
