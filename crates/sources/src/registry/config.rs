//! The file of `--registryConfig`: registries with all they can be told, and what holds between them.
//! Flags of Pilot name one server of each kind; this form names several and says the rest.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use model::change::SourceId;
use model::conflict::{Conflicts, Policy};
use model::service::Registry;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::http;
use crate::registry::cloudfoundry;
use crate::registry::consul;
use crate::registry::dns;
use crate::registry::eureka;
use crate::registry::ledger::Protection;

/// A whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Config {
    conflicts: ConflictRules,
    pub registries: Vec<Entry>,
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
pub struct Entry {
    /// Tells registries of one kind apart.
    #[serde(default)]
    pub name: String,
    /// Nobody is served before it is in sync. One that is not required is waited for until its deadline.
    #[serde(default = "yes")]
    pub required: bool,
    #[serde(default = "Period::half_a_minute")]
    pub startup_deadline: Period,
    #[serde(default)]
    empty_protection: ProtectionRules,
    consul: Option<consul::Options>,
    eureka: Option<eureka::Options>,
    cloud_foundry: Option<cloudfoundry::Options>,
    dns: Option<dns::Options>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct ProtectionRules {
    lost_percent: u8,
    at_least: usize,
    hold_for: Period,
}

impl Default for ProtectionRules {
    fn default() -> ProtectionRules {
        let Protection { lost_percent, at_least, hold_for } = Protection::default();
        ProtectionRules { lost_percent, at_least, hold_for: Period(hold_for) }
    }
}

/// What watches a registry, by its kind.
#[derive(Clone, Debug)]
pub enum Adapter {
    Consul(consul::Options),
    Eureka(eureka::Options),
    CloudFoundry(cloudfoundry::Options),
    Dns(dns::Options),
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
pub struct Tls {
    /// Certificates to believe, else those of the system.
    pub ca_file: Option<PathBuf>,
    /// The certificate to show, with its key.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    /// The name in the server's certificate, where it is not that of the URL.
    pub server_name: Option<String>,
}

impl Tls {
    /// Options of a client for these URLs. The system's certificates are read only where they are needed.
    pub fn options(
        &self,
        urls: &[String],
        idle_connections: usize,
        held_bytes: usize,
    ) -> Result<http::Options, http::Error> {
        let roots = match &self.ca_file {
            Some(file) => http::Roots::File(file.clone()),
            None if urls.iter().any(|url| url.starts_with("https:")) => http::Roots::System,
            None => http::Roots::None,
        };
        let identity = match (&self.cert_file, &self.key_file) {
            (Some(chain), Some(key)) => Some(http::Identity { chain: chain.clone(), key: key.clone() }),
            (None, None) => None,
            _ => return Err(http::Error::Tls("certFile and keyFile go together".to_owned())),
        };
        let server_name = self.server_name.clone();
        Ok(http::Options { roots, identity, server_name, idle_connections, held_bytes, ..http::Options::default() })
    }
}

/// A duration as Go writes it, such as `30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period(pub Duration);

impl Period {
    fn half_a_minute() -> Period {
        Period(Duration::from_secs(30))
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Period, D::Error> {
        let text = String::deserialize(deserializer)?;
        let parsed = model::duration::parse(&text).and_then(|parsed| Duration::try_from(parsed).ok());
        parsed.map(Period).ok_or_else(|| D::Error::custom(format!("{text:?} is not a duration such as 30s")))
    }
}

fn yes() -> bool {
    true
}

impl Config {
    /// Reads a file's text. The error says what is wrong, and where.
    pub fn parse(text: &str) -> Result<Config, String> {
        let config: Config = serde_saphyr::from_str(text).map_err(|e| e.to_string())?;
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

    pub fn conflicts(&self) -> Conflicts {
        let rules = &self.conflicts;
        Conflicts {
            policy: rules.policy.into(),
            hosts: rules.hosts.iter().map(|rule| (rule.host.as_str().into(), rule.policy.into())).collect(),
            order: rules.order.iter().map(|name| name.as_str().into()).collect(),
            stores: Vec::new(),
        }
    }
}

impl Entry {
    /// An entry as flags make it: required, nothing special.
    pub fn of(adapter: Adapter) -> Entry {
        let none = Entry {
            name: String::new(),
            required: true,
            startup_deadline: Period::half_a_minute(),
            empty_protection: ProtectionRules::default(),
            consul: None,
            eureka: None,
            cloud_foundry: None,
            dns: None,
        };
        match adapter {
            Adapter::Consul(options) => Entry { consul: Some(options), ..none },
            Adapter::Eureka(options) => Entry { eureka: Some(options), ..none },
            Adapter::CloudFoundry(options) => Entry { cloud_foundry: Some(options), ..none },
            Adapter::Dns(options) => Entry { dns: Some(options), ..none },
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

    pub fn protection(&self) -> Protection {
        let ProtectionRules { lost_percent, at_least, hold_for } = self.empty_protection;
        Protection { lost_percent, at_least, hold_for: hold_for.0 }
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

impl From<PolicyName> for Policy {
    fn from(name: PolicyName) -> Policy {
        match name {
            PolicyName::Merge => Policy::Merge,
            PolicyName::Order => Policy::Order,
            PolicyName::Isolate => Policy::Isolate,
            PolicyName::Reject => Policy::Reject,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::conflict::Policy;

    use super::Config;

    #[test]
    fn a_file_names_registries_and_rules() {
        let text = "conflicts:\n  policy: order\n  order: [Consul]\n  hosts: [{host: '*.mesh', policy: reject}]\n\
                    registries:\n- name: dc1\n  required: false\n  startupDeadline: 5s\n  \
                    consul: {addresses: ['http://127.0.0.1:8500'], wait: 1m}\n\
                    - eureka: {addresses: ['http://127.0.0.1:8761/eureka']}\n";
        let config = Config::parse(text).unwrap();
        let ids: Vec<String> = config.registries.iter().map(|e| e.id().unwrap().0.to_string()).collect();
        assert_eq!(ids, ["Consul/dc1", "Eureka"]);
        assert_eq!(config.registries[0].startup_deadline.0, Duration::from_secs(5));
        assert!(!config.registries[0].required && config.registries[1].required);
        let conflicts = config.conflicts();
        assert_eq!(conflicts.policy_of(&"a.mesh".into()), Policy::Reject);
        assert_eq!(conflicts.policy_of(&"a.other".into()), Policy::Order);
    }

    #[test]
    fn mistakes_are_named() {
        let check = |text: &str, part: &str| {
            let error = Config::parse(text).unwrap_err();
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
