//! The list of service registries, by the names that `--registries` takes.
//! One row here and one file beside this make a new registry.

pub mod adaptive_timeout;
pub mod cloudfoundry;
pub mod config;
pub mod config_file;
pub mod consul;
pub mod diff;
pub mod dns;
pub mod eureka;
pub mod mock;
pub mod normalize;
pub mod poll_interval;

use model::problem::{Problem, Subject};
use model::service::Registry;

/// Every registry that upstream ever had and our own, in the order in which services of one host are merged:
/// Kubernetes first, as upstream does.
pub const ALL: &[Registry] = &[
    Registry::Kubernetes,
    Registry::Consul,
    Registry::Eureka,
    Registry::CloudFoundry,
    Registry::Mcp,
    Registry::Dns,
    Registry::Mock,
];

/// The registries that `--registries` names, without repeats and in the list's order, and what is
/// wrong with the flag's value. One that cannot be watched does not hold back the others.
/// ServiceEntry (0.8: `Config`) is always on and needs no row.
pub fn chosen<'a>(names: impl IntoIterator<Item = &'a str>) -> (Vec<Registry>, Vec<Problem>) {
    let mut registries = Vec::new();
    let mut problems = Vec::new();
    let names = names.into_iter().flat_map(|list| list.split(',')).map(str::trim);
    for name in names.filter(|name| !name.is_empty() && !is_always_on(name)) {
        match ALL.iter().find(|registry| registry.as_str() == name) {
            None => problems.push(Problem::error(
                Subject::Setting("--registries".into()),
                format!("no registry is called {name:?}"),
            )),
            Some(registry) => registries.push(*registry),
        }
    }
    registries.sort_by_key(|registry| ALL.iter().position(|other| other == registry));
    registries.dedup();
    (registries, problems)
}

fn is_always_on(name: &str) -> bool {
    name == "Config" || name == Registry::External.as_str()
}

#[cfg(test)]
mod tests {
    use model::service::Registry;

    use super::chosen;

    fn check(value: &str, registries: &[Registry], problems: &[&str]) {
        let (chosen, found) = chosen([value]);
        assert_eq!(chosen, registries, "{value}");
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
