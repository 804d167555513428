//! One route table.

use model::names::Text;

/// One route table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RoutePlan {
    pub name: Text,
}
