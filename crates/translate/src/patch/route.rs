//! Patches to route tables, virtual hosts and routes.

use std::collections::BTreeSet;

use api::Resource;
use api::envoy::config::route::v3::route::Action;
use api::envoy::config::route::v3::{Route, RouteConfiguration, VirtualHost};
use api::istio::networking::v1alpha3::envoy_filter::patch::Operation;
use api::istio::networking::v1alpha3::envoy_filter::route_configuration_match::{
    RouteMatch, VirtualHostMatch, route_match as route_action,
};
use api::istio::networking::v1alpha3::envoy_filter::{ApplyTo, PatchContext};
use model::config::patches::Patch;
use model::hashed::Hashed;
use model::problem::Problem;
use scope::View;
use scope::gateway::MergedGateway;
use scope::patches::HeldPatch;

use super::matching::{applies_in, route_match, unset_or_equal};
use super::merge::MessageMerge;
use super::selection::{PatchEffect, select};
use super::{PatchedPlan, added_resource, context, list, of, value};
use crate::plan::route::{RoutePlan, TablePurpose};
use crate::render;

const KINDS: &[ApplyTo] = &[ApplyTo::RouteConfiguration, ApplyTo::VirtualHost, ApplyTo::HttpRoute];

/// The planned route table with its patches.
pub(crate) fn patched(view: &View, plan: RoutePlan, problems: &mut Vec<Problem>) -> PatchedPlan<RoutePlan> {
    let context = context(view, false);
    let matches = |held: &&HeldPatch| match context {
        _ if !applies_in(&held.patch, context) => false,
        PatchContext::Gateway => matches_gateway(&held.patch, &plan.name, view.gateway.as_deref()),
        // Upstream sends no table for an unknown name, so there is nothing to patch.
        _ => plan.purpose != TablePurpose::Unknown && matches_sidecar(&held.patch, &plan.name),
    };
    let patches: Vec<&HeldPatch> = view.patches.to(KINDS).filter(matches).collect();
    let routes: usize = plan.virtual_hosts.iter().map(|host| host.routes.len()).sum();
    let effect = |patch: &Patch, plan: &RoutePlan| match patch.apply_to {
        ApplyTo::HttpRoute => PatchEffect::Applies(routes.max(plan.virtual_hosts.len())),
        ApplyTo::VirtualHost if patch.operation != Operation::Add => PatchEffect::Applies(plan.virtual_hosts.len()),
        _ => PatchEffect::Applies(1),
    };
    let (knobs, namespace) = (&view.settings.knobs, &view.proxy.namespace);
    let chosen = select(knobs, namespace, std::slice::from_ref(&plan), &patches, effect, problems);
    let patches = chosen.into_iter().flatten().next().unwrap_or_else(|| Hashed::new(Vec::new()));
    PatchedPlan::Planned { plan, patches }
}

/// The encoded route table; `plain` encodes one without patches.
pub fn resource(patched: &PatchedPlan<RoutePlan>, plain: impl FnOnce(&RoutePlan) -> Resource) -> Resource {
    match patched {
        PatchedPlan::Planned { plan, patches } if patches.is_empty() => plain(plan),
        PatchedPlan::Planned { plan, patches } => {
            let mut table = render::route::route(plan);
            apply(&mut table, patches);
            Resource::new(plan.name.clone(), &table)
        }
        PatchedPlan::Added { name, patch } => added_resource(name, patch),
    }
}

/// Whether a patch matches a sidecar's table, such as `80` or `inbound|8080||`.
pub(super) fn matches_sidecar(patch: &Patch, table: &str) -> bool {
    let Some(conditions) = route_match(patch) else { return true };
    let port = if table.starts_with("inbound|") { table.split('|').nth(1) } else { Some(table) };
    let port: u32 = port.and_then(|port| port.parse().ok()).unwrap_or(0);
    unset_or_equal(&conditions.name, table) && (conditions.port_number == 0 || conditions.port_number == port)
}

/// Whether a patch matches a gateway's table. Patches match the Gateway's port; the table's name has the target port
/// that a Service may map it to.
fn matches_gateway(patch: &Patch, table: &str, gateway: Option<&MergedGateway>) -> bool {
    let Some(conditions) = route_match(patch) else { return true };
    let name = GatewayTable::parse(table);
    let ports = || -> BTreeSet<u32> {
        let tables = gateway.into_iter().flat_map(|gateway| gateway.servers_by_route.iter());
        let same_port = tables.filter(|(route, _)| GatewayTable::parse(route).port == name.port);
        same_port.flat_map(|(_, servers)| servers.iter().map(|server| server.port())).collect()
    };
    let is_port = |number: u32| {
        let ports = ports();
        if ports.is_empty() { number == name.port } else { ports.contains(&number) }
    };
    unset_or_equal(&conditions.name, table)
        && unset_or_equal(&conditions.port_name, name.port_name)
        && unset_or_equal(&conditions.gateway, &name.gateway)
        && (conditions.port_number == 0 || is_port(conditions.port_number))
}

/// A parsed name of a gateway's table: `http.80`, or `https.443.port.gateway.namespace`.
#[derive(Debug, Default, PartialEq, Eq)]
struct GatewayTable<'a> {
    port: u32,
    port_name: &'a str,
    /// `namespace/name`
    gateway: String,
}

impl GatewayTable<'_> {
    fn parse(name: &str) -> GatewayTable<'_> {
        let parts: Vec<&str> = name.split('.').collect();
        match parts[..] {
            ["http", port] => GatewayTable { port: port.parse().unwrap_or(0), ..GatewayTable::default() },
            ["https", port, port_name, gateway, namespace] => {
                GatewayTable { port: port.parse().unwrap_or(0), port_name, gateway: format!("{namespace}/{gateway}") }
            }
            _ => GatewayTable::default(),
        }
    }
}

/// Applies patches that match the table.
pub(super) fn apply(table: &mut RouteConfiguration, patches: &[Hashed<Patch>]) {
    let mut merge = MessageMerge::new(&mut *table);
    of(patches, ApplyTo::RouteConfiguration).for_each(|patch| merge.merge(patch));
    drop(merge);
    let mut removed = BTreeSet::new();
    for host in &mut table.virtual_hosts {
        if !apply_to_host(host, patches) {
            removed.insert(host.name.clone());
        }
    }
    for patch in of(patches, ApplyTo::VirtualHost).filter(|patch| patch.operation == Operation::Add) {
        table.virtual_hosts.extend(value::<VirtualHost>(patch));
    }
    table.virtual_hosts.retain(|host| !removed.contains(&host.name));
}

/// Applies patches to a virtual host. Returns false if it is removed.
fn apply_to_host(host: &mut VirtualHost, patches: &[Hashed<Patch>]) -> bool {
    let mut open = MessageMerge::new(&mut *host);
    for patch in of(patches, ApplyTo::VirtualHost) {
        if virtual_host_match(patch).is_some() && !matches_host(patch, open.message()) {
            continue;
        }
        match patch.operation {
            Operation::Remove => return false,
            Operation::Replace => {
                if let Some(other) = value(patch) {
                    *open.message() = other;
                }
            }
            _ => open.merge(patch),
        }
    }
    drop(open);
    let matching = |patch: &&Hashed<Patch>| patch.apply_to == ApplyTo::HttpRoute && matches_host(patch, host);
    let patches: Vec<Hashed<Patch>> = patches.iter().filter(matching).cloned().collect();
    host.routes.retain_mut(|route| apply_to_route(route, &patches));
    for patch in of(&patches, ApplyTo::HttpRoute) {
        insert(&mut host.routes, patch);
    }
    true
}

/// Applies patches to a route. Returns false if it is removed.
fn apply_to_route(route: &mut Route, patches: &[Hashed<Patch>]) -> bool {
    let mut open = MessageMerge::new(route);
    for patch in of(patches, ApplyTo::HttpRoute) {
        if http_route_match(patch).is_some_and(|conditions| !matches_route(conditions, open.message())) {
            continue;
        }
        if patch.operation == Operation::Remove {
            return false;
        }
        open.merge(patch);
    }
    true
}

fn insert(routes: &mut Vec<Route>, patch: &Patch) {
    let conditions = http_route_match(patch);
    let matches = |route: &Route| conditions.is_some_and(|conditions| matches_route(conditions, route));
    match patch.operation {
        Operation::Add | Operation::InsertAfter | Operation::InsertBefore => {}
        // With a route match, inserted only if a route matches.
        Operation::InsertFirst if conditions.is_none() || routes.iter().any(matches) => {}
        _ => return,
    }
    let matches: Option<&dyn Fn(&Route) -> bool> = if conditions.is_some() { Some(&matches) } else { None };
    list::edit(routes, patch.operation, value(patch), matches);
}

fn virtual_host_match(patch: &Patch) -> Option<&VirtualHostMatch> {
    route_match(patch)?.vhost.as_ref()
}

fn http_route_match(patch: &Patch) -> Option<&RouteMatch> {
    virtual_host_match(patch)?.route.as_ref()
}

fn matches_host(patch: &Patch, host: &VirtualHost) -> bool {
    virtual_host_match(patch).is_none_or(|conditions| {
        unset_or_equal(&conditions.name, &host.name)
            && (conditions.domain_name.is_empty() || host.domains.contains(&conditions.domain_name))
    })
}

fn matches_route(conditions: &RouteMatch, route: &Route) -> bool {
    use route_action::Action as Kind;
    let kind = match &route.action {
        Some(Action::Route(_)) => Kind::Route,
        Some(Action::Redirect(_)) => Kind::Redirect,
        Some(Action::DirectResponse(_)) => Kind::DirectResponse,
        // As upstream: other actions match any.
        _ => conditions.action(),
    };
    unset_or_equal(&conditions.name, &route.name) && [Kind::Any, kind].contains(&conditions.action())
}

#[cfg(test)]
mod tests {
    use super::GatewayTable;

    #[test]
    fn names_of_gateway_tables_are_parsed() {
        let table = |port, port_name, gateway: &str| GatewayTable { port, port_name, gateway: gateway.into() };
        assert_eq!(GatewayTable::parse("http.8080"), table(8080, "", ""));
        assert_eq!(GatewayTable::parse("https.443.web.gw.shop"), table(443, "web", "shop/gw"));
        assert_eq!(GatewayTable::parse("https.443.web"), table(0, "", ""));
        assert_eq!(GatewayTable::parse("8080"), table(0, "", ""));
    }
}
