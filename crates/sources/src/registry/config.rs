//! The file of `--registryConfig`: registries with all they can be told, and what holds between them.
//! Flags of Pilot name one server of each kind; this form names several and says the rest.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use model::change::SourceId;
use model::conflict::{ConflictPolicy, ConflictSettings};
use model::service::Registry;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::http;
use crate::registry::cloudfoundry;
use crate::registry::consul;
use crate::registry::diff::MassLossGuard;
use crate::registry::dns;
use crate::registry::eureka;

/// A whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct RegistryConfig {
    conflicts: ConflictRules,
    pub registries: Vec<RegistryEntry>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct ConflictRules {
    policy: PolicyName,
    order: Vec<String>,
    hosts: Vec<HostRule>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct HostRule {
    host: String,
    policy: PolicyName,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum PolicyName {
    #[default]
    Merge,
    Order,
    Isolate,
    Reject,
}

/// One registry.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RegistryEntry {
    /// Tells registries of one kind apart.
    #[serde(default)]
    pub name: String,
    /// Nobody is served before it is in sync. One that is not required is waited for until its deadline.
    #[serde(default = "yes")]
    pub required: bool,
    #[serde(default = "GoDuration::half_a_minute")]
    pub startup_deadline: GoDuration,
    #[serde(default)]
    empty_protection: MassLossOptions,
    consul: Option<consul::ConsulOptions>,
    eureka: Option<eureka::EurekaOptions>,
    cloud_foundry: Option<cloudfoundry::CloudFoundryOptions>,
    dns: Option<dns::DnsOptions>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct MassLossOptions {
    lost_percent: u8,
    at_least: usize,
    hold_for: GoDuration,
}

impl Default for MassLossOptions {
    fn default() -> MassLossOptions {
        let MassLossGuard { lost_percent, at_least, hold_for } = MassLossGuard::default();
        MassLossOptions { lost_percent, at_least, hold_for: GoDuration(hold_for) }
    }
}

/// What watches a registry, by its kind.
#[derive(Clone, Debug)]
pub enum Adapter {
    Consul(consul::ConsulOptions),
    Eureka(eureka::EurekaOptions),
    CloudFoundry(cloudfoundry::CloudFoundryOptions),
    Dns(dns::DnsOptions),
}

impl Adapter {
    pub fn registry(&self) -> Registry {
        match self {
            Adapter::Consul(_) => Registry::Consul,
            Adapter::Eureka(_) => Registry::Eureka,
            Adapter::CloudFoundry(_) => Registry::CloudFoundry,
            Adapter::Dns(_) => Registry::Dns,
        }
    }
}

/// How a registry is reached over TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct TlsOptions {
    /// Certificates to believe, else those of the system.
    pub ca_file: Option<PathBuf>,
    /// The certificate to show, with its key.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    /// The name in the server's certificate, where it is not that of the URL.
    pub server_name: Option<String>,
}

impl TlsOptions {
    /// Options of a client for these URLs. The system's certificates are read only where they are needed.
    pub fn options(
        &self,
        urls: &[String],
        idle_connections: usize,
        held_bytes: usize,
    ) -> Result<http::HttpOptions, http::HttpError> {
        let roots = match &self.ca_file {
            Some(file) => http::TrustRoots::File(file.clone()),
            None if urls.iter().any(|url| url.starts_with("https:")) => http::TrustRoots::System,
            None => http::TrustRoots::None,
        };
        let identity = match (&self.cert_file, &self.key_file) {
            (Some(chain), Some(key)) => Some(http::ClientIdentity { chain: chain.clone(), key: key.clone() }),
            (None, None) => None,
            _ => return Err(http::HttpError::Tls("certFile and keyFile go together".to_owned())),
        };
        let server_name = self.server_name.clone();
        Ok(http::HttpOptions {
            roots,
            identity,
            server_name,
            idle_connections,
            held_bytes,
            ..http::HttpOptions::default()
        })
    }
}

/// A duration as Go writes it, such as `30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoDuration(pub Duration);

impl GoDuration {
    fn half_a_minute() -> GoDuration {
        GoDuration(Duration::from_secs(30))
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<GoDuration, D::Error> {
        let text = String::deserialize(deserializer)?;
        let parsed = model::duration::parse(&text).and_then(|parsed| Duration::try_from(parsed).ok());
        parsed.map(GoDuration).ok_or_else(|| D::Error::custom(format!("{text:?} is not a duration such as 30s")))
    }
}

fn yes() -> bool {
    true
}

impl RegistryConfig {
    /// Reads a file's text. The error says what is wrong, and where.
    pub fn parse(text: &str) -> Result<RegistryConfig, String> {
        let config: RegistryConfig = serde_saphyr::from_str(text).map_err(|e| e.to_string())?;
        let mut ids = BTreeSet::new();
        for entry in &config.registries {
            let id = entry.id()?;
            entry.adapter()?.check().map_err(|reason| format!("registry {}: {reason}", id.0))?;
            if !ids.insert(id.clone()) {
                return Err(format!("two registries are called {}: give each a name", id.0));
            }
        }
        Ok(config)
    }

    pub fn conflicts(&self) -> ConflictSettings {
        let rules = &self.conflicts;
        ConflictSettings {
            policy: rules.policy.into(),
            hosts: rules.hosts.iter().map(|rule| (rule.host.as_str().into(), rule.policy.into())).collect(),
            order: rules.order.iter().map(|name| name.as_str().into()).collect(),
            stores: Vec::new(),
        }
    }
}

impl RegistryEntry {
    /// An entry as flags make it: required, nothing special.
    pub fn of(adapter: Adapter) -> RegistryEntry {
        let none = RegistryEntry {
            name: String::new(),
            required: true,
            startup_deadline: GoDuration::half_a_minute(),
            empty_protection: MassLossOptions::default(),
            consul: None,
            eureka: None,
            cloud_foundry: None,
            dns: None,
        };
        match adapter {
            Adapter::Consul(options) => RegistryEntry { consul: Some(options), ..none },
            Adapter::Eureka(options) => RegistryEntry { eureka: Some(options), ..none },
            Adapter::CloudFoundry(options) => RegistryEntry { cloud_foundry: Some(options), ..none },
            Adapter::Dns(options) => RegistryEntry { dns: Some(options), ..none },
        }
    }

    pub fn adapter(&self) -> Result<Adapter, String> {
        let consul = self.consul.clone().map(Adapter::Consul);
        let eureka = self.eureka.clone().map(Adapter::Eureka);
        let cloud_foundry = self.cloud_foundry.clone().map(Adapter::CloudFoundry);
        let dns = self.dns.clone().map(Adapter::Dns);
        let mut found: Vec<Adapter> = [consul, eureka, cloud_foundry, dns].into_iter().flatten().collect();
        match (found.pop(), found.is_empty()) {
            (Some(adapter), true) => Ok(adapter),
            _ => Err(format!("registry {:?} must have exactly one of consul, eureka, cloudFoundry, dns", self.name)),
        }
    }

    /// `Consul`, or `Consul/NAME`.
    pub fn id(&self) -> Result<SourceId, String> {
        let registry = self.adapter()?.registry().as_str();
        Ok(SourceId(if self.name.is_empty() { registry.into() } else { format!("{registry}/{}", self.name).into() }))
    }

    pub fn guard(&self) -> MassLossGuard {
        let MassLossOptions { lost_percent, at_least, hold_for } = self.empty_protection;
        MassLossGuard { lost_percent, at_least, hold_for: hold_for.0 }
    }
}

impl Adapter {
    fn check(&self) -> Result<(), String> {
        match self {
            Adapter::Consul(options) => options.check(),
            Adapter::Eureka(options) => options.check(),
            Adapter::CloudFoundry(options) => options.check(),
            Adapter::Dns(options) => options.check(),
        }
    }
}

impl From<PolicyName> for ConflictPolicy {
    fn from(name: PolicyName) -> ConflictPolicy {
        match name {
            PolicyName::Merge => ConflictPolicy::Merge,
            PolicyName::Order => ConflictPolicy::Order,
            PolicyName::Isolate => ConflictPolicy::Isolate,
            PolicyName::Reject => ConflictPolicy::Reject,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::conflict::ConflictPolicy;

    use super::RegistryConfig;

    #[test]
    fn a_file_names_registries_and_rules() {
        let text = "conflicts:\n  policy: order\n  order: [Consul]\n  hosts: [{host: '*.mesh', policy: reject}]\n\
                    registries:\n- name: dc1\n  required: false\n  startupDeadline: 5s\n  \
                    consul: {addresses: ['http://127.0.0.1:8500'], wait: 1m}\n\
                    - eureka: {addresses: ['http://127.0.0.1:8761/eureka']}\n";
        let config = RegistryConfig::parse(text).unwrap();
        let ids: Vec<String> = config.registries.iter().map(|e| e.id().unwrap().0.to_string()).collect();
        assert_eq!(ids, ["Consul/dc1", "Eureka"]);
        assert_eq!(config.registries[0].startup_deadline.0, Duration::from_secs(5));
        assert!(!config.registries[0].required && config.registries[1].required);
        let conflicts = config.conflicts();
        assert_eq!(conflicts.policy_of(&"a.mesh".into()), ConflictPolicy::Reject);
        assert_eq!(conflicts.policy_of(&"a.other".into()), ConflictPolicy::Order);
    }

    #[test]
    fn mistakes_are_named() {
        let check = |text: &str, part: &str| {
            let error = RegistryConfig::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        };
        check("registries:\n- name: a\n", "exactly one of consul, eureka, cloudFoundry, dns");
        check("registries:\n- cloudFoundry: {address: 'a:1', tls: {caFile: /a}}\n", "tls.certFile is missing");
        check("registries:\n- consul: {adresses: []}\n", "adresses");
        check("registries:\n- consul: {addresses: []}\n", "no address");
        check("registries:\n- consul: {addresses: ['http://a'], wait: soon}\n", "\"soon\" is not a duration");
        let twice = "- consul: {addresses: ['http://a']}\n";
        check(&format!("registries:\n{twice}{twice}"), "two registries are called Consul");
        check("registries:\n- consul: {addresses: ['http://a'], host: '{name}.x'}\n", "{service}");
    }
}
