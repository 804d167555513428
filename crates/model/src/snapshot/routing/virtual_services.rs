//! VirtualServices in order of age, with short names resolved and delegates merged in.
//! The merge of one route with its delegate is in `delegates`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use api::istio::networking::v1alpha3::{Destination, HttpRoute, VirtualService};

use super::delegates::{self, BudgetExceeded, DelegateBudget};
use super::{Semantics, VirtualServiceRule, route_rules};
use crate::config::problem::{Problem, ProblemCode};
use crate::config::{Config, Kind, Meta, Spec};
use crate::hashed::{Hashed, fingerprint};
use crate::host::resolve_short_name;
use crate::names::{Namespace, Str};
use crate::service::ExportTo;
use crate::settings::{Knobs, Settings};
use crate::snapshot::objects::{AllObjects, by_age, sort_by_age};

/// The gateway name of all sidecars.
const MESH: &str = "mesh";

/// VirtualServices without hosts, which others delegate to.
type Delegates = BTreeMap<(Namespace, Str), Config<VirtualService>>;

/// All VirtualServices with hosts.
pub(super) struct ResolvedServices {
    pub(super) rules: Vec<Arc<VirtualServiceRule>>,
    pub(super) merges: MergeCache,
    /// Delegating routes that were left out because of limits.
    pub(super) problems: Vec<Problem>,
}

/// Cache of merged VirtualServices by the fingerprint of all inputs.
pub(super) type MergeCache = HashMap<u128, Arc<MergedService>>;

/// A VirtualService with its delegates merged in.
#[derive(Debug)]
pub(super) struct MergedService {
    spec: Hashed<VirtualService>,
    /// The remaining budget of its namespace.
    left: DelegateBudget,
    problems: Vec<Problem>,
}

/// Resolves names and merges delegates. Unchanged merges are taken from `before`.
pub(super) fn resolved(objects: &AllObjects<'_>, settings: &Settings, before: &MergeCache) -> ResolvedServices {
    let found: Vec<Config<VirtualService>> = by_age!(objects, VirtualService);
    let (roots, delegates): (Vec<_>, Vec<_>) = found.into_iter().partition(|c| !c.spec.hosts.is_empty());
    let roots = roots.into_iter().map(|config| with_own_names(config, settings)).collect();
    let delegates: Delegates = delegates
        .into_iter()
        .map(|c| ((c.meta.namespace.clone(), c.meta.name.clone()), with_full_names(c, settings)))
        .collect();
    let mut merging = DelegateMerger {
        delegates,
        settings,
        before,
        merges: MergeCache::new(),
        budgets: BTreeMap::new(),
        problems: Vec::new(),
    };
    let rules = route_rules::joined(roots).into_iter().map(|config| Arc::new(merging.rule(config))).collect();
    ResolvedServices { rules, merges: merging.merges, problems: merging.problems }
}

/// Merges delegates into VirtualServices, oldest first, within the budgets.
struct DelegateMerger<'a> {
    delegates: Delegates,
    settings: &'a Settings,
    before: &'a MergeCache,
    merges: MergeCache,
    budgets: BTreeMap<Namespace, DelegateBudget>,
    problems: Vec<Problem>,
}

impl DelegateMerger<'_> {
    fn rule(&mut self, config: Config<VirtualService>) -> VirtualServiceRule {
        let export_to = ExportTo::parse(&config.spec.export_to);
        let config = match Semantics::of(&config.meta) {
            Semantics::Gateway | Semantics::Ingress => config,
            Semantics::VirtualService => self.with_delegates(config),
        };
        VirtualServiceRule { config, export_to }
    }

    /// Replaces each delegating route by the merged routes of its delegate. If the delegate is missing or not visible from
    /// the root's namespace, only that route is dropped.
    fn with_delegates(&mut self, config: Config<VirtualService>) -> Config<VirtualService> {
        if config.spec.http.iter().all(|route| route.delegate.is_none()) {
            return config;
        }
        let knobs = &self.settings.knobs;
        let budget =
            *self.budgets.entry(config.meta.namespace.clone()).or_insert_with(|| DelegateBudget::of_namespace(knobs));
        let delegates: Vec<Option<&Config<VirtualService>>> =
            config.spec.http.iter().map(|route| self.delegate(&config.meta, route)).collect();
        let of_delegates: Vec<_> = delegates.iter().map(|found| found.map(|d| d.spec.fingerprint())).collect();
        let Meta { namespace, name, location, .. } = &*config.meta;
        let key = fingerprint(&(config.spec.fingerprint(), namespace, name, location, of_delegates, budget));
        let merge = match self.before.get(&key) {
            Some(known) => known.clone(),
            None => Arc::new(merge(&config, &delegates, budget, knobs)),
        };
        self.budgets.insert(config.meta.namespace.clone(), merge.left);
        self.problems.extend(merge.problems.iter().cloned());
        let spec = merge.spec.clone();
        self.merges.insert(key, merge);
        Config { meta: config.meta, spec }
    }

    /// The delegate of a route.
    fn delegate(&self, root: &Meta, route: &HttpRoute) -> Option<&Config<VirtualService>> {
        let (namespace, name) = delegate_name(root, route)?;
        self.delegates.get(&(namespace, name)).filter(|found| is_visible(found, root, self.settings))
    }
}

fn delegate_name(root: &Meta, route: &HttpRoute) -> Option<(Namespace, Str)> {
    let name = route.delegate.as_ref()?;
    let namespace =
        if name.namespace.is_empty() { root.namespace.clone() } else { Namespace::from(name.namespace.as_str()) };
    Some((namespace, name.name.as_str().into()))
}

/// Merges the delegate of each route. If one exceeds the budget, only its route is dropped.
fn merge(
    config: &Config<VirtualService>,
    delegates: &[Option<&Config<VirtualService>>],
    mut left: DelegateBudget,
    knobs: &Knobs,
) -> MergedService {
    let mut own = DelegateBudget::of_object(knobs);
    let mut left_out: BTreeMap<(Namespace, Str), usize> = BTreeMap::new();
    let mut spec = VirtualService::clone(&config.spec);
    let routes = std::mem::take(&mut spec.http);
    for (route, delegate) in routes.into_iter().zip(delegates) {
        let Some(name) = delegate_name(&config.meta, &route) else {
            spec.http.push(route);
            continue;
        };
        let Some(delegate) = delegate else { continue };
        match own.spend(&mut left, |left| delegates::merged(&route, &delegate.spec.http, left)) {
            Ok(routes) => spec.http.extend(routes),
            Err(BudgetExceeded) => *left_out.entry(name).or_default() += 1,
        }
    }
    let problems = left_out.into_iter().map(|(delegate, count)| too_much(&config.meta, &delegate, count, knobs));
    MergedService { problems: problems.collect(), spec: Hashed::from_message(spec), left }
}

fn too_much(root: &Meta, (namespace, name): &(Namespace, Str), routes: usize, knobs: &Knobs) -> Problem {
    let message = format!(
        "{routes} of its routes delegate to {namespace}/{name} and are left out: merged, delegates may give a \
         VirtualService {} routes (PILOTAGE_DELEGATED_ROUTES) of {} bytes (PILOTAGE_DELEGATED_BYTES), and a namespace \
         four times as many; delegate from fewer routes, or raise the limits",
        knobs.delegated_routes, knobs.delegated_bytes
    );
    Problem::warning(root.key(Kind::VirtualService), message).coded(ProblemCode::Limit).at(root.location.clone())
}

fn is_visible(delegate: &Config<VirtualService>, root: &Meta, settings: &Settings) -> bool {
    let written = ExportTo::parse(&delegate.spec.export_to);
    let default = settings.default_virtual_service_export();
    written.or(&default).admits(&delegate.meta.namespace, &root.namespace)
}

/// Resolves names, except those from the Gateway API, which are fully qualified already.
fn with_own_names(config: Config<VirtualService>, settings: &Settings) -> Config<VirtualService> {
    match Semantics::of(&config.meta) {
        Semantics::Gateway => config,
        Semantics::Ingress | Semantics::VirtualService => with_full_names(config, settings),
    }
}

/// The VirtualService with fully qualified host and gateway names.
pub(in crate::snapshot) fn with_full_names(
    config: Config<VirtualService>,
    settings: &Settings,
) -> Config<VirtualService> {
    let mut names = NameResolver { meta: &config.meta, domain: &settings.domain, changed: false };
    let mut spec = VirtualService::clone(&config.spec);
    names.hosts(&mut spec.hosts);
    names.gateways(&mut spec.gateways);
    for route in &mut spec.http {
        names.http(route);
    }
    for route in &mut spec.tcp {
        route.r#match.iter_mut().for_each(|m| names.gateways(&mut m.gateways));
        route.route.iter_mut().for_each(|d| names.destination(d.destination.as_mut()));
    }
    for route in &mut spec.tls {
        route.r#match.iter_mut().for_each(|m| names.gateways(&mut m.gateways));
        route.route.iter_mut().for_each(|d| names.destination(d.destination.as_mut()));
    }
    let spec = if names.changed { Hashed::from_message(spec) } else { config.spec.clone() };
    Config { meta: config.meta, spec }
}

/// Resolves short names relative to the namespace of one object.
struct NameResolver<'a> {
    meta: &'a Meta,
    domain: &'a str,
    changed: bool,
}

impl NameResolver<'_> {
    fn http(&mut self, route: &mut HttpRoute) {
        route.r#match.iter_mut().for_each(|m| self.gateways(&mut m.gateways));
        route.route.iter_mut().for_each(|d| self.destination(d.destination.as_mut()));
        self.destination(route.mirror.as_mut());
        route.mirrors.iter_mut().for_each(|m| self.destination(m.destination.as_mut()));
    }

    fn destination(&mut self, destination: Option<&mut Destination>) {
        if let Some(destination) = destination {
            self.host(&mut destination.host);
        }
    }

    fn hosts(&mut self, hosts: &mut [String]) {
        hosts.iter_mut().for_each(|host| self.host(host));
    }

    fn host(&mut self, host: &mut String) {
        let full = resolve_short_name(host, &self.meta.namespace, self.domain);
        if full != host.as_str() {
            *host = full.to_string();
            self.changed = true;
        }
    }

    fn gateways(&mut self, gateways: &mut [String]) {
        for gateway in gateways.iter_mut().filter(|g| *g != MESH) {
            let full = gateway_name(gateway, &self.meta.namespace);
            if full != *gateway {
                *gateway = full;
                self.changed = true;
            }
        }
    }
}

/// A gateway as `namespace/name`. A name with dots is the old form `name.namespace.svc.cluster.local`.
fn gateway_name(name: &str, namespace: &str) -> String {
    match name.split_once('/') {
        Some((".", rest)) => format!("{namespace}/{rest}"),
        Some(_) => name.to_owned(),
        None => match name.split_once('.') {
            None => format!("{namespace}/{name}"),
            Some((short, rest)) => format!("{}/{short}", rest.split('.').next().unwrap_or(rest)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::gateway_name;

    #[test]
    fn gateway_names_are_resolved_against_the_namespace_of_the_object() {
        assert_eq!(gateway_name("edge", "shop"), "shop/edge");
        assert_eq!(gateway_name("./edge", "shop"), "shop/edge");
        assert_eq!(gateway_name("infra/edge", "shop"), "infra/edge");
        assert_eq!(gateway_name("edge.infra.svc.cluster.local", "shop"), "infra/edge");
        assert_eq!(gateway_name("edge.infra", "shop"), "infra/edge");
    }
}
