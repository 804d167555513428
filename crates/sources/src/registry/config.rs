//! The file of `--registryConfig`: registries with all their options, and how conflicts between them are settled.
//! Flags describe at most one registry of each kind; the file describes any number.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use model::change::SourceId;
use model::conflict::{ConflictPolicy, ConflictSettings};
use model::names::{ClusterId, Str};
use serde::de::{DeserializeSeed, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::registry::adapter::{AdapterOptions, AdapterRow, SourcePlace};
use crate::registry::diff::MassLossGuard;
use crate::registry::options_error::OptionsError;
use crate::registry::shared_options::GoDuration;
use crate::registry::table;

/// A whole file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
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
#[derive(Clone, Debug, PartialEq)]
pub struct RegistryEntry {
    /// Distinguishes registries of one kind; empty for an unnamed one.
    pub name: String,
    /// No client is served before a required registry is in sync. Others are waited for until their deadline.
    pub required: bool,
    pub startup_deadline: Duration,
    pub guard: MassLossGuard,
    pub options: AdapterOptions,
}

/// `emptyProtection` of an entry.
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

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RegistryConfigError {
    #[error("{0}")]
    Yaml(Box<serde_saphyr::Error>),
    #[error("registry {id}: {error}")]
    Options { id: Str, error: OptionsError },
    #[error("two registries are called {0}: give each a name")]
    SameName(Str),
}

impl RegistryConfig {
    /// Reads and checks a file's text.
    pub fn parse(text: &str) -> Result<RegistryConfig, RegistryConfigError> {
        let config: RegistryConfig =
            serde_saphyr::from_str(text).map_err(|error| RegistryConfigError::Yaml(Box::new(error)))?;
        let mut ids = BTreeSet::new();
        for entry in &config.registries {
            let id = entry.id();
            entry.options.check().map_err(|error| RegistryConfigError::Options { id: id.0.clone(), error })?;
            if !ids.insert(id.clone()) {
                return Err(RegistryConfigError::SameName(id.0));
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
    /// A required registry with the defaults of all other settings, as flags describe it.
    pub fn of(options: AdapterOptions) -> RegistryEntry {
        RegistryEntry {
            name: String::new(),
            required: true,
            startup_deadline: Duration::from_secs(30),
            guard: MassLossGuard::default(),
            options,
        }
    }

    /// `Consul`, or `Consul/NAME`.
    pub fn id(&self) -> SourceId {
        let registry = self.options.registry().as_str();
        SourceId(if self.name.is_empty() { registry.into() } else { format!("{registry}/{}", self.name).into() })
    }

    /// The input of the entry's source in addition to its options.
    pub fn place(&self, cluster: &ClusterId) -> SourcePlace {
        SourcePlace { id: self.id(), cluster: cluster.clone(), guard: self.guard }
    }
}

impl<'de> Deserialize<'de> for RegistryEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RegistryEntry, D::Error> {
        deserializer.deserialize_map(EntryVisitor)
    }
}

/// Reads an entry. The keys of its options come from the table of registries.
struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = RegistryEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a registry")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<RegistryEntry, A::Error> {
        let (mut name, mut required, mut deadline, mut loss) = (String::new(), true, None, MassLossOptions::default());
        let mut options = Vec::new();
        while let Some(key) = entries.next_key::<String>()? {
            match key.as_str() {
                "name" => name = entries.next_value()?,
                "required" => required = entries.next_value()?,
                "startupDeadline" => deadline = Some(entries.next_value::<GoDuration>()?.0),
                "emptyProtection" => loss = entries.next_value()?,
                section => match table::by_section(section) {
                    Some(row) => options.push(entries.next_value_seed(Section(row))?),
                    None => return Err(A::Error::custom(format!("unknown field `{section}` of a registry"))),
                },
            }
        }
        let (Some(options), true) = (options.pop(), options.is_empty()) else {
            let expected = table::sections();
            return Err(A::Error::custom(format!("registry {name:?} must have exactly one of {expected}")));
        };
        let MassLossOptions { lost_percent, at_least, hold_for } = loss;
        let guard = MassLossGuard { lost_percent, at_least, hold_for: hold_for.0 };
        let entry = RegistryEntry::of(options);
        let startup_deadline = deadline.unwrap_or(entry.startup_deadline);
        Ok(RegistryEntry { name, required, startup_deadline, guard, ..entry })
    }
}

/// Reads the options of one adapter.
struct Section(&'static AdapterRow);

impl<'de> DeserializeSeed<'de> for Section {
    type Value = AdapterOptions;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<AdapterOptions, D::Error> {
        let mut erased = <dyn erased_serde::Deserializer<'_>>::erase(deserializer);
        self.0.deserialize(&mut erased).map_err(D::Error::custom)
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
    fn a_file_describes_registries_and_conflict_rules() {
        let text = "conflicts:\n  policy: order\n  order: [Consul]\n  hosts: [{host: '*.mesh', policy: reject}]\n\
                    registries:\n- name: dc1\n  required: false\n  startupDeadline: 5s\n  \
                    consul: {addresses: ['http://127.0.0.1:8500'], wait: 1m}\n\
                    - eureka: {addresses: ['http://127.0.0.1:8761/eureka']}\n";
        let config = RegistryConfig::parse(text).unwrap();
        let ids: Vec<String> = config.registries.iter().map(|e| e.id().0.to_string()).collect();
        assert_eq!(ids, ["Consul/dc1", "Eureka"]);
        assert_eq!(config.registries[0].startup_deadline, Duration::from_secs(5));
        assert!(!config.registries[0].required && config.registries[1].required);
        assert_eq!(config, RegistryConfig::parse(text).unwrap());
        assert_ne!(config, RegistryConfig::parse(&text.replace("8500", "8501")).unwrap());
        let conflicts = config.conflicts();
        assert_eq!(conflicts.policy_of(&"a.mesh".into()), ConflictPolicy::Reject);
        assert_eq!(conflicts.policy_of(&"a.other".into()), ConflictPolicy::Order);
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        let check = |text: &str, part: &str| {
            let error = RegistryConfig::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        };
        check("registries:\n- name: a\n", "exactly one of consul, eureka, cloudFoundry, dns");
        check("registries:\n- name: a\n  nacos: {}\n", "unknown field `nacos`");
        check("registries:\n- cloudFoundry: {address: 'a:1', tls: {caFile: /a}}\n", "tls.certFile is missing");
        check("registries:\n- consul: {adresses: []}\n", "adresses");
        check("registries:\n- consul: {adresses: []}\n", "line 2");
        check("registries:\n- consul: {addresses: []}\n", "no address");
        check("registries:\n- consul: {addresses: ['http://a'], wait: soon}\n", "\"soon\" is not a duration");
        let twice = "- consul: {addresses: ['http://a']}\n";
        check(&format!("registries:\n{twice}{twice}"), "two registries are called Consul");
        check("registries:\n- consul: {addresses: ['http://a'], host: '{name}.x'}\n", "{service}");
    }
}
