//! All routes of one poll, in a form that compares equal however Copilot orders them.

use std::collections::{BTreeMap, BTreeSet};

use super::schema::{BackendSet, InternalRoutesResponse, RouteBackend, RouteWithBackends, RoutesResponse};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RouteTable {
    pub(super) routes: BTreeMap<RouteKey, Route>,
    /// By host.
    pub(super) internal: BTreeMap<String, InternalRoute>,
}

/// A route's mapping to one process of an application.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RouteKey {
    pub(super) host: String,
    /// Empty, or beginning with a slash and not ending with one.
    pub(super) path: String,
    pub(super) process: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) weight: u32,
    pub(super) backends: BTreeSet<RouteBackend>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InternalRoute {
    pub(super) vip: String,
    pub(super) backends: BTreeSet<RouteBackend>,
}

impl RouteTable {
    pub(super) fn new(routes: RoutesResponse, internal: InternalRoutesResponse) -> RouteTable {
        let mut table = RouteTable::default();
        let legacy = routes.backends.into_iter().map(|(hostname, backends)| RouteWithBackends {
            hostname,
            backends: Some(backends),
            ..RouteWithBackends::default()
        });
        for route in legacy.chain(routes.routes) {
            let key = RouteKey {
                host: route.hostname.to_ascii_lowercase(),
                path: plain_path(&route.path),
                process: route.capi_process_guid,
            };
            let known = table.routes.entry(key).or_default();
            known.weight = known.weight.max(u32::try_from(route.route_weight).unwrap_or_default());
            known.backends.extend(listed(route.backends));
        }
        for route in internal.internal_routes {
            let known = table.internal.entry(route.hostname.to_ascii_lowercase()).or_default();
            known.vip = route.vip;
            known.backends.extend(listed(route.backends));
        }
        table
    }

    pub(super) fn is_empty(&self) -> bool {
        self.routes.is_empty() && self.internal.is_empty()
    }

    /// Adds routes of `before` that are missing, and backends to routes without any. Returns the number of routes that
    /// were changed.
    pub(super) fn keep(&mut self, before: &RouteTable) -> usize {
        let mut kept = 0;
        for (key, had) in &before.routes {
            let has = self.routes.entry(key.clone()).or_insert_with(|| absent(had, &mut kept));
            refill(&mut has.backends, &had.backends, &mut kept);
        }
        for (host, had) in &before.internal {
            let has = self.internal.entry(host.clone()).or_insert_with(|| absent(had, &mut kept));
            refill(&mut has.backends, &had.backends, &mut kept);
        }
        kept
    }
}

fn absent<T: Clone>(had: &T, kept: &mut usize) -> T {
    *kept += 1;
    had.clone()
}

fn refill(has: &mut BTreeSet<RouteBackend>, had: &BTreeSet<RouteBackend>, kept: &mut usize) {
    if has.is_empty() && !had.is_empty() {
        has.clone_from(had);
        *kept += 1;
    }
}

fn plain_path(path: &str) -> String {
    let path = path.trim_matches('/');
    if path.is_empty() { String::new() } else { format!("/{path}") }
}

fn listed(set: Option<BackendSet>) -> Vec<RouteBackend> {
    set.map(|set| set.backends).unwrap_or_default()
}
