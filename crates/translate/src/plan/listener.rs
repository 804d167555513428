//! One listener.

use model::names::Text;

/// One listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ListenerPlan {
    pub name: Text,
}
