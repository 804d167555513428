//! Routes of a VirtualService for one client and port. Used by sidecars and gateways, which differ in their gateway
//! names and in how they look up services.

use api::istio::networking::v1alpha3::string_match::MatchType;
use api::istio::networking::v1alpha3::{HttpMatchRequest, HttpRetry, HttpRoute};
use model::hashed::Hashed;
use model::service::Service;
use model::snapshot::routing::{Semantics, VirtualServiceRule};
use scope::View;

use super::destination;
use super::{DestinationPlan, RouteEntry, RouteFlags, RuleRoute, SessionState};

/// The client and port that routes are planned for.
pub(super) struct RouteContext<'a> {
    pub(super) view: &'a View,
    /// The listener's port.
    pub(super) port: u16,
    /// Gateway names that apply to the client: `mesh`, or names of Gateways.
    pub(super) gateways: &'a [&'a str],
    /// Looks up the service of a destination host.
    pub(super) service: &'a dyn Fn(&str) -> Option<&'a Service>,
    pub(super) mesh_retries: Option<Hashed<HttpRetry>>,
    pub(super) flags: RouteFlags,
}

/// The routes that apply, in order. Routes after a catch-all are omitted.
pub(super) fn routes(context: &RouteContext<'_>, rule: &VirtualServiceRule) -> Vec<RouteEntry> {
    let semantics = rule.semantics();
    let mut out = Vec::with_capacity(rule.config.spec.http.len());
    for (index, route) in rule.config.spec.http.iter().enumerate() {
        if route.r#match.is_empty() {
            out.push(entry(context, rule, semantics, index, None));
            break;
        }
        for (condition, request) in route.r#match.iter().enumerate() {
            if !applies(context, request) {
                continue;
            }
            out.push(entry(context, rule, semantics, index, Some(condition)));
            if takes_everything(request, semantics) {
                return out;
            }
        }
    }
    out
}

/// Whether the route matches every request.
pub(super) fn is_catch_all(entry: &RouteEntry) -> bool {
    match entry {
        RouteEntry::Rule(rule) => rule.condition().is_none_or(|request| takes_everything(request, rule.semantics)),
        RouteEntry::Default(_) | RouteEntry::Passthrough { .. } | RouteEntry::BlackHole | RouteEntry::Misdirected => {
            true
        }
    }
}

/// Whether the match can apply to this client.
fn applies(context: &RouteContext<'_>, request: &HttpMatchRequest) -> bool {
    if request.port != 0 && request.port != u32::from(context.port) {
        return false;
    }
    if !request.gateways.is_empty() {
        return request.gateways.iter().any(|g| context.gateways.contains(&g.as_str()));
    }
    let proxy = &context.view.proxy;
    proxy.labels.is_selected_by(&request.source_labels)
        && (request.source_namespace.is_empty() || proxy.namespace == request.source_namespace.as_str())
}

/// Whether every request matches.
fn takes_everything(request: &HttpMatchRequest, semantics: Semantics) -> bool {
    let any_path = match request.uri.as_ref().and_then(|uri| uri.match_type.as_ref()) {
        None => true,
        Some(MatchType::Prefix(prefix)) => prefix == "/" || (semantics != Semantics::VirtualService && prefix == "//"),
        Some(MatchType::Regex(regex)) => regex == ".*",
        Some(MatchType::Exact(_)) => false,
    };
    any_path
        && request.headers.is_empty()
        && request.without_headers.is_empty()
        && request.query_params.is_empty()
        && request.method.is_none()
        && request.authority.is_none()
        && request.scheme.is_none()
}

fn entry(
    context: &RouteContext<'_>,
    rule: &VirtualServiceRule,
    semantics: Semantics,
    index: usize,
    condition: Option<usize>,
) -> RouteEntry {
    let config = &rule.config;
    let route = &config.spec.http[index];
    let cluster = |d: &_| destination::cluster_name(d, (context.service)(&d.host), context.port);
    let destinations = route.route.iter().map(|weighted| {
        let destination = weighted.destination.as_ref();
        DestinationPlan {
            cluster: destination.and_then(|d| destination::cluster(d, (context.service)(&d.host), context.port)),
            hash: destination.and_then(|d| destination::hashing(context.view, d)),
        }
    });
    RouteEntry::Rule(Box::new(RuleRoute {
        spec: config.spec.clone(),
        index,
        condition,
        namespace: config.meta.namespace.clone(),
        object: config.meta.name.clone(),
        semantics,
        port: context.port,
        destinations: destinations.collect(),
        mirror: route.mirror.as_ref().map(cluster),
        mirrors: route.mirrors.iter().map(|m| m.destination.as_ref().map(cluster)).collect(),
        mesh_retries: context.mesh_retries.clone(),
        session: session(context, route),
        flags: context.flags,
    }))
}

/// The session of the last destination with a weight. If two consecutive destinations have one, the first wins, as
/// upstream.
fn session(context: &RouteContext<'_>, route: &HttpRoute) -> Option<SessionState> {
    if route.redirect.is_some() || route.direct_response.is_some() {
        return None;
    }
    let alone = route.route.len() == 1;
    let mut chosen = None;
    for weighted in route.route.iter().filter(|d| alone || d.weight != 0) {
        let host = weighted.destination.as_ref().map_or("", |d| &d.host);
        let wanted = (context.service)(host).and_then(|service| destination::session(context.view, service));
        if wanted.is_some() && chosen.is_some() {
            break;
        }
        chosen = wanted;
    }
    chosen
}
