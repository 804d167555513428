//! The DNS names one client can resolve.

use model::names::Text;

/// The DNS names one client can resolve.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NameTablePlan {
    pub name: Text,
}
