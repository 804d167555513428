//! VirtualServices in order of age, with short names resolved and delegates merged in.
//! How one route is merged with its delegate stands in `delegates`.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::istio::networking::v1alpha3::{Destination, HttpRoute, VirtualService};

use super::{Semantics, VirtualServiceRule, delegates};
use crate::config::{Config, Kind, Meta, Spec};
use crate::host::resolve_short_name;
use crate::names::{Namespace, Text};
use crate::service::ExportTo;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::snapshot::objects::{Sight, by_age, sort_by_age};

/// The gateway name that means every sidecar.
const MESH: &str = "mesh";

/// VirtualServices without hosts of their own, which others delegate to.
type Delegates = BTreeMap<(Namespace, Text), Config<VirtualService>>;

/// Every VirtualService that has hosts of its own.
pub(super) fn resolved(objects: &Sight<'_>, settings: &Settings) -> Vec<Arc<VirtualServiceRule>> {
    let found: Vec<Config<VirtualService>> = by_age!(objects, VirtualService);
    let (roots, delegates): (Vec<_>, Vec<_>) = found.into_iter().partition(|c| !c.spec.hosts.is_empty());
    let delegates: Delegates = delegates
        .into_iter()
        .map(|c| ((c.meta.namespace.clone(), c.meta.name.clone()), with_full_names(c, settings)))
        .collect();
    roots.into_iter().map(|config| Arc::new(rule(config, &delegates, settings))).collect()
}

fn rule(config: Config<VirtualService>, delegates: &Delegates, settings: &Settings) -> VirtualServiceRule {
    let export_to = ExportTo::parse(&config.spec.export_to);
    let config = match Semantics::of(&config.meta) {
        // Names from the Gateway API are full already.
        Semantics::Gateway => config,
        Semantics::Ingress => with_full_names(config, settings),
        Semantics::VirtualService => with_delegates(with_full_names(config, settings), delegates, settings),
    };
    VirtualServiceRule { config, export_to }
}

/// Replaces each route that delegates by the routes of its delegate. A delegate that is missing, or not
/// visible from the root's namespace, costs only that route.
fn with_delegates(
    config: Config<VirtualService>,
    delegates: &Delegates,
    settings: &Settings,
) -> Config<VirtualService> {
    if config.spec.http.iter().all(|route| route.delegate.is_none()) {
        return config;
    }
    let mut spec = VirtualService::clone(&config.spec);
    let routes = std::mem::take(&mut spec.http);
    spec.http = routes
        .into_iter()
        .flat_map(|route| match &route.delegate {
            None => vec![route],
            Some(name) => {
                let namespace = if name.namespace.is_empty() {
                    config.meta.namespace.clone()
                } else {
                    Namespace::from(name.namespace.as_str())
                };
                let delegate = delegates.get(&(namespace, name.name.as_str().into()));
                let visible = delegate.filter(|d| is_visible(d, &config.meta, settings));
                visible.map(|d| delegates::merged(&route, &d.spec.http)).unwrap_or_default()
            }
        })
        .collect();
    Config { meta: config.meta, spec: Shared::new(spec) }
}

fn is_visible(delegate: &Config<VirtualService>, root: &Meta, settings: &Settings) -> bool {
    let written = ExportTo::parse(&delegate.spec.export_to);
    let default = settings.default_virtual_service_export();
    written.or(&default).admits(&delegate.meta.namespace, &root.namespace)
}

/// The same VirtualService with every host and gateway name in full.
fn with_full_names(config: Config<VirtualService>, settings: &Settings) -> Config<VirtualService> {
    let mut names = Names { meta: &config.meta, domain: &settings.domain, changed: false };
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
    let spec = if names.changed { Shared::new(spec) } else { config.spec.clone() };
    Config { meta: config.meta, spec }
}

/// Resolves names as the namespace of one object sees them.
struct Names<'a> {
    meta: &'a Meta,
    domain: &'a str,
    changed: bool,
}

impl Names<'_> {
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

/// A gateway as `namespace/name`. A name with dots is the host name that gateways had before namespaces
/// could be written: `name.namespace.svc.cluster.local`.
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
