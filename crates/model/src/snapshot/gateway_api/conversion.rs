//! Results of converting rules, shared by the files of each protocol.

use std::collections::{BTreeMap, BTreeSet};

use super::conditions::ConditionFault;

/// Converted rules, and their last fault.
pub(super) struct RouteConversion<R> {
    pub(super) routes: Vec<R>,
    pub(super) fault: Option<ConditionFault>,
}

impl<R> RouteConversion<R> {
    pub(super) fn none() -> RouteConversion<R> {
        RouteConversion { routes: Vec::new(), fault: None }
    }

    /// Collects the rules. An error in one rule drops all.
    pub(super) fn collect(
        rules: impl Iterator<Item = Result<(R, Option<ConditionFault>), ConditionFault>>,
    ) -> RouteConversion<R> {
        let mut all = RouteConversion::none();
        for rule in rules {
            match rule {
                Ok((route, fault)) => {
                    all.routes.push(route);
                    all.fault = fault.or(all.fault);
                }
                Err(fault) => return RouteConversion { routes: Vec::new(), fault: Some(fault) },
            }
        }
        all
    }
}

/// Gateways that route to each backend, by kind, namespace and name of the backend; for the status of policies.
pub(super) type Ancestors = BTreeMap<(String, String, String), BTreeSet<(String, String)>>;
