//! A name table plan as the NameTable that pilot-agent's DNS proxy reads.

use api::nds::NameTable;

use crate::plan::names::NameTablePlan;

/// The name table.
pub fn name_table(_plan: &NameTablePlan) -> NameTable {
    NameTable::default()
}
