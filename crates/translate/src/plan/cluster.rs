//! One cluster.

use model::names::Text;

/// One cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterPlan {
    pub name: Text,
}
