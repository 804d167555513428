//! The table of service registries. A new registry is one folder and one row here; see ARCHITECTURE.md.

use model::service::Registry;

use crate::registry::adapter::AdapterRow;
use crate::registry::cloudfoundry::CloudFoundryOptions;
use crate::registry::consul::ConsulOptions;
use crate::registry::dns::DnsOptions;
use crate::registry::etcd::EtcdRegistryOptions;
use crate::registry::eureka::EurekaOptions;
use crate::registry::flags::RegistryFlag;
use crate::registry::mock::MockOptions;
use crate::registry::zookeeper::ZooKeeperOptions;

/// Registries with an adapter, in the order in which they are listed in messages.
pub static ADAPTERS: &[AdapterRow] = &[
    AdapterRow::of::<ConsulOptions>(),
    AdapterRow::of::<EurekaOptions>(),
    AdapterRow::of::<CloudFoundryOptions>(),
    AdapterRow::of::<DnsOptions>(),
    AdapterRow::of::<EtcdRegistryOptions>(),
    AdapterRow::of::<ZooKeeperOptions>(),
    AdapterRow::of::<MockOptions>(),
];

/// A config store whose ServiceEntries are services, under the name of a registry.
const MCP: &str = "MCP";
/// ServiceEntry, under its name in Pilot 0.8. It is always on.
const CONFIG: &str = "Config";

/// A value of `--registries`.
#[derive(Clone, Copy)]
pub enum RegistryChoice {
    Kubernetes,
    Mcp,
    Adapter(&'static AdapterRow),
}

/// `--registries` names an unknown registry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no registry is called {0:?}")]
pub struct UnknownRegistry(String);

impl RegistryChoice {
    pub fn name(&self) -> &'static str {
        match self {
            RegistryChoice::Kubernetes => Registry::Kubernetes.as_str(),
            RegistryChoice::Mcp => MCP,
            RegistryChoice::Adapter(row) => row.registry.as_str(),
        }
    }
}

/// Every registry that `--registries` accepts.
pub fn choices() -> impl Iterator<Item = RegistryChoice> {
    [RegistryChoice::Kubernetes, RegistryChoice::Mcp].into_iter().chain(ADAPTERS.iter().map(RegistryChoice::Adapter))
}

/// The registries that `--registries` names, in the order of [`choices`] and without repeats. ServiceEntry is always
/// on, so its names are accepted and ignored.
pub fn chosen<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<RegistryChoice>, UnknownRegistry> {
    let names: Vec<&str> = names.into_iter().flat_map(|list| list.split(',')).map(str::trim).collect();
    let is_always_on = |name: &str| name == CONFIG || name == Registry::External.as_str();
    let is_known = |name: &str| name.is_empty() || is_always_on(name) || choices().any(|choice| choice.name() == name);
    match names.iter().find(|name| !is_known(name)) {
        Some(unknown) => Err(UnknownRegistry((*unknown).to_owned())),
        None => Ok(choices().filter(|choice| names.contains(&choice.name())).collect()),
    }
}

/// Flags of all registries.
pub fn flags() -> impl Iterator<Item = &'static RegistryFlag> {
    ADAPTERS.iter().flat_map(|row| row.flags)
}

/// The adapter of a section of `--registryConfig`.
pub(super) fn by_section(section: &str) -> Option<&'static AdapterRow> {
    ADAPTERS.iter().find(|row| row.section == Some(section))
}

/// All sections of `--registryConfig`, for messages.
pub(super) fn sections() -> String {
    ADAPTERS.iter().filter_map(|row| row.section).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use model::service::Registry;

    use super::{ADAPTERS, chosen};

    fn check(value: &str, expected: &[&str]) {
        let chosen = chosen([value]).unwrap();
        assert_eq!(chosen.iter().map(|choice| choice.name()).collect::<Vec<_>>(), expected, "{value}");
    }

    #[test]
    fn registries_are_chosen_by_name() {
        check("", &[]);
        check("Mock", &["Mock"]);
        check("Mock, Config,Mock", &["Mock"]);
        check("Mock,Eureka,Consul", &["Consul", "Eureka", "Mock"]);
        check("Mock,CloudFoundry,Kubernetes", &["Kubernetes", "CloudFoundry", "Mock"]);
        let error = chosen(["Nacos,Mock"]).err().unwrap();
        assert_eq!(error.to_string(), "no registry is called \"Nacos\"");
    }

    #[test]
    fn names_sections_flags_and_ranks_are_unique() {
        let unique = |what: &str, all: Vec<String>| {
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{what}: {all:?}");
        };
        unique("names", ADAPTERS.iter().map(|row| row.registry.as_str().to_owned()).collect());
        let rank = |registry| if let Registry::Adapter { rank, .. } = registry { rank } else { 0 };
        unique("ranks", ADAPTERS.iter().map(|row| rank(row.registry).to_string()).collect());
        unique("sections", ADAPTERS.iter().filter_map(|row| row.section).map(str::to_owned).collect());
        unique("flags", super::flags().map(|flag| flag.name.to_owned()).collect());
    }
}
