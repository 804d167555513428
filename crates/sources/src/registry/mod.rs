//! The list of service registries, by the names that `--registries` takes.
//! One row here and one file beside this make a new registry.

pub mod cloudfoundry;
pub mod config;
pub mod consul;
pub mod directory;
pub mod dns;
pub mod eureka;
pub mod ledger;
pub mod mock;
pub mod pace;
pub mod shape;

use model::problem::Problem;
use model::service::Registry;

/// One row of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub registry: Registry,
    /// The flags it reads, the necessary ones first.
    pub flags: &'static [&'static str],
    pub support: Support,
}

/// Whether this program can watch a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    Yes,
    /// The name is upstream's, of some release; we know it but have no code for it yet.
    NotYet,
}

/// Every registry that upstream ever had and our own, in the order in which services of one host are merged:
/// Kubernetes first, as upstream does.
pub const ROWS: &[Row] = &[
    Row { registry: Registry::Kubernetes, flags: &["kubeconfig", "clusterID"], support: Support::Yes },
    Row { registry: Registry::Consul, flags: &["consulserverURL", "consulserverInterval"], support: Support::Yes },
    Row { registry: Registry::Eureka, flags: &["eurekaserverURL", "eurekaserverInterval"], support: Support::Yes },
    Row { registry: Registry::CloudFoundry, flags: &["cfConfig"], support: Support::Yes },
    Row { registry: Registry::Mcp, flags: &["mcpServerAddrs"], support: Support::Yes },
    Row { registry: Registry::Dns, flags: &["registryConfig"], support: Support::Yes },
    Row { registry: Registry::Mock, flags: &[], support: Support::Yes },
];

/// The registries that `--registries` names, without repeats and in the list's order, and what is
/// wrong with the flag's value. One that cannot be watched does not hold back the others.
/// ServiceEntry (0.8: `Config`) is always on and needs no row.
pub fn chosen<'a>(names: impl IntoIterator<Item = &'a str>) -> (Vec<Row>, Vec<Problem>) {
    let mut rows = Vec::new();
    let mut problems = Vec::new();
    let names = names.into_iter().flat_map(|list| list.split(',')).map(str::trim);
    for name in names.filter(|name| !name.is_empty() && !is_always_on(name)) {
        match ROWS.iter().find(|row| row.registry.as_str() == name) {
            None => problems.push(Problem::error("--registries", format!("no registry is called {name:?}"))),
            Some(row) if row.support == Support::NotYet => {
                problems.push(Problem::error("--registries", format!("registry {name} is not supported yet")));
            }
            Some(row) => rows.push(*row),
        }
    }
    let place = |row: &Row| ROWS.iter().position(|other| other == row);
    rows.sort_by_key(place);
    rows.dedup();
    (rows, problems)
}

fn is_always_on(name: &str) -> bool {
    name == "Config" || name == Registry::External.as_str()
}

#[cfg(test)]
mod tests {
    use model::service::Registry;

    use super::chosen;

    fn check(value: &str, registries: &[Registry], problems: &[&str]) {
        let (rows, found) = chosen([value]);
        assert_eq!(rows.iter().map(|row| row.registry).collect::<Vec<_>>(), registries, "{value}");
        assert_eq!(found.iter().map(|p| &*p.message).collect::<Vec<_>>(), problems, "{value}");
    }

    #[test]
    fn registries_are_chosen_by_name() {
        check("", &[], &[]);
        check("Mock", &[Registry::Mock], &[]);
        check("Mock, Config,Mock", &[Registry::Mock], &[]);
        check("Zookeeper,Mock", &[Registry::Mock], &["no registry is called \"Zookeeper\""]);
        check("Mock,Eureka,Consul", &[Registry::Consul, Registry::Eureka, Registry::Mock], &[]);
        check("Mock,CloudFoundry", &[Registry::CloudFoundry, Registry::Mock], &[]);
    }
}
