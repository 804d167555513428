//! Renders the name table of pilot-agent's DNS proxy.

use api::nds::{NameInfo, NameTable};

use crate::plan::names::{NameEntry, NameTablePlan};

/// The name table.
pub fn name_table(plan: &NameTablePlan) -> NameTable {
    NameTable { table: plan.names.iter().map(|(host, entry)| (host.to_string(), info(entry))).collect() }
}

fn info(entry: &NameEntry) -> NameInfo {
    let (shortname, namespace) = match &entry.short_name {
        Some((name, namespace)) => (name.to_string(), namespace.to_string()),
        None => Default::default(),
    };
    NameInfo {
        ips: entry.addresses.iter().map(|a| a.to_string()).collect(),
        registry: entry.registry.as_str().into(),
        shortname,
        namespace,
    }
}
