//! The endpoints of one cluster.

use model::names::Text;

/// The endpoints of one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointsPlan {
    pub name: Text,
}
