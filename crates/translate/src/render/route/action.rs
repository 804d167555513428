//! Route actions: forward, redirect, direct response.

use api::Duration;
use api::envoy::config::core::v3::data_source::Specifier;
use api::envoy::config::core::v3::{DataSource, RuntimeFractionalPercent};
use api::envoy::config::route::v3::redirect_action::{
    PathRewriteSpecifier, RedirectResponseCode, SchemeRewriteSpecifier,
};
use api::envoy::config::route::v3::route_action::{
    ClusterNotFoundResponseCode, ClusterSpecifier, HostRewriteSpecifier, RequestMirrorPolicy,
};
use api::envoy::config::route::v3::route_match::PathSpecifier;
use api::envoy::config::route::v3::weighted_cluster::{ClusterWeight, cluster_weight};
use api::envoy::config::route::v3::{DirectResponseAction, RedirectAction, Route, RouteAction, WeightedCluster};
use api::envoy::r#type::matcher::v3::RegexMatchAndSubstitute;
use api::envoy::r#type::v3::FractionalPercent;
use api::istio::networking::v1alpha3::http_redirect::{RedirectPort, RedirectPortSelection};
use api::istio::networking::v1alpha3::{
    HttpDirectResponse, HttpRedirect, HttpRewrite, HttpRouteDestination, http_body,
};
use model::snapshot::routing::Semantics;

use super::filters::{millionths, percent};
use super::matches::regex_matcher;
use super::{hashing, headers, retry};
use crate::plan::route::{DestinationPlan, RuleRoute};
use crate::regex_escape::escaped;

/// Forwards to the rule's destinations. Headers of a single destination are added to the route.
pub(super) fn forward(plan: &RuleRoute, authority: String, out: &mut Route) -> RouteAction {
    let route = plan.route();
    let timeout = route.timeout.unwrap_or_default();
    let mut action = RouteAction {
        timeout: Some(timeout),
        max_grpc_timeout: Some(if timeout == Duration::default() { Duration::default() } else { timeout }),
        request_mirror_policies: mirrors(plan),
        ..RouteAction::default()
    };
    if plan.semantics == Semantics::Gateway {
        action.cluster_not_found_response_code = ClusterNotFoundResponseCode::InternalServerError as i32;
    }
    let mut authority = authority;
    if let Some(rewrite) = &route.rewrite {
        action.append_x_forwarded_host = plan.flags.forwarded_host;
        rewrite_path(&mut action, rewrite, plan.semantics, out);
        if !rewrite.authority.is_empty() {
            authority.clone_from(&rewrite.authority);
        }
    }
    if !authority.is_empty() {
        action.host_rewrite_specifier = Some(HostRewriteSpecifier::HostRewriteLiteral(authority));
    }
    let mut sticky = retry::RetryHosts::Any;
    if let ([destination], [planned]) = (&route.route[..], &plan.destinations[..]) {
        single(destination, planned, out, &mut action);
        if planned.hash.is_some() {
            sticky = retry::RetryHosts::Same;
        }
    } else {
        weighted(plan, &mut action);
    }
    action.retry_policy = retry::policy(route.retries.as_ref().or(plan.mesh_retries.as_deref()), sticky);
    action
}

/// A redirect; `None` for a status code that Envoy does not support.
pub(super) fn redirect(redirect: &HttpRedirect, plan: &RuleRoute) -> Option<RedirectAction> {
    let code = match redirect.redirect_code {
        0 | 301 => RedirectResponseCode::MovedPermanently,
        302 => RedirectResponseCode::Found,
        303 => RedirectResponseCode::SeeOther,
        307 => RedirectResponseCode::TemporaryRedirect,
        308 => RedirectResponseCode::PermanentRedirect,
        _ => return None,
    };
    let path = if redirect.prefix_rewrite.is_empty() {
        PathRewriteSpecifier::PathRedirect(redirect.uri.clone())
    } else {
        PathRewriteSpecifier::PrefixRewrite(redirect.prefix_rewrite.clone())
    };
    let scheme = Some(&redirect.scheme).filter(|s| !s.is_empty()).cloned();
    Some(RedirectAction {
        host_redirect: redirect.authority.clone(),
        port_redirect: redirect_port(redirect, plan),
        response_code: code as i32,
        scheme_rewrite_specifier: scheme.map(SchemeRewriteSpecifier::SchemeRedirect),
        path_rewrite_specifier: Some(path),
        ..RedirectAction::default()
    })
}

/// A direct response.
pub(super) fn direct_response(response: &HttpDirectResponse) -> DirectResponseAction {
    let body = response.body.as_ref().and_then(|b| b.specifier.as_ref()).map(|specifier| match specifier {
        http_body::Specifier::String(text) => Specifier::InlineString(text.clone()),
        http_body::Specifier::Bytes(bytes) => Specifier::InlineBytes(bytes.clone()),
    });
    DirectResponseAction {
        status: response.status,
        body: body.map(|specifier| DataSource { specifier: Some(specifier), ..DataSource::default() }),
        ..DirectResponseAction::default()
    }
}

/// The redirect port; 0 if it is the scheme's default.
fn redirect_port(redirect: &HttpRedirect, plan: &RuleRoute) -> u32 {
    let port = match redirect.redirect_port {
        None => return 0,
        Some(RedirectPort::Port(port)) => port,
        // Envoy cannot derive the port from the request, but all requests here use the listener's port.
        Some(RedirectPort::DerivePort(choice)) if choice == RedirectPortSelection::FromRequestPort as i32 => {
            u32::from(plan.port)
        }
        Some(RedirectPort::DerivePort(_)) => 0,
    };
    let scheme = match redirect.scheme.as_str() {
        "" if plan.flags.tls => "https",
        "" => "http",
        scheme => scheme,
    };
    if matches!((port, scheme), (80, "http") | (443, "https")) { 0 } else { port }
}

fn rewrite_path(action: &mut RouteAction, rewrite: &HttpRewrite, semantics: Semantics, out: &Route) {
    if let Some(regex) = &rewrite.uri_regex_rewrite {
        action.regex_rewrite = Some(substitution(&regex.r#match, &regex.rewrite));
    } else if rewrite.uri == "/" && semantics == Semantics::Gateway {
        // Removing a prefix must leave at least `/`.
        let specifier = out.r#match.as_ref().and_then(|m| m.path_specifier.as_ref());
        let prefix = match specifier {
            Some(PathSpecifier::PathSeparatedPrefix(prefix)) => prefix.as_str(),
            _ => "",
        };
        action.regex_rewrite = Some(substitution(&format!("^{}(/?)(.*)", escaped(prefix)), r"/\2"));
    } else {
        action.prefix_rewrite.clone_from(&rewrite.uri);
    }
}

fn substitution(pattern: &str, substitution: &str) -> RegexMatchAndSubstitute {
    RegexMatchAndSubstitute { pattern: Some(regex_matcher(pattern)), substitution: substitution.into() }
}

fn single(destination: &HttpRouteDestination, plan: &DestinationPlan, out: &mut Route, action: &mut RouteAction) {
    action.cluster_specifier = Some(ClusterSpecifier::Cluster(plan.cluster_name()));
    if let Some(written) = &destination.headers {
        let authority = headers::extend_route(out, written);
        // The route's own authority takes precedence, as with several destinations.
        if !authority.is_empty() && action.host_rewrite_specifier.is_none() {
            action.host_rewrite_specifier = Some(HostRewriteSpecifier::HostRewriteLiteral(authority));
        }
    }
    action.hash_policy.extend(plan.hash.as_ref().and_then(|h| hashing::policy(h)));
}

fn weighted(plan: &RuleRoute, action: &mut RouteAction) {
    let destinations = plan.route().route.iter().zip(&plan.destinations).filter(|(d, _)| d.weight != 0);
    let mut clusters = Vec::new();
    for (destination, planned) in destinations {
        let mut cluster = ClusterWeight {
            name: planned.cluster_name(),
            weight: Some(destination.weight as u32),
            ..ClusterWeight::default()
        };
        if let Some(written) = &destination.headers {
            let operations = headers::operations(written);
            cluster.request_headers_to_add = operations.request_add;
            cluster.request_headers_to_remove = operations.request_remove;
            cluster.response_headers_to_add = operations.response_add;
            cluster.response_headers_to_remove = operations.response_remove;
            cluster.host_rewrite_specifier = Some(operations.authority)
                .filter(|a| !a.is_empty())
                .map(cluster_weight::HostRewriteSpecifier::HostRewriteLiteral);
        }
        clusters.push(cluster);
        action.hash_policy.extend(planned.hash.as_ref().and_then(|h| hashing::policy(h)));
    }
    let weighted = WeightedCluster { clusters, ..WeightedCluster::default() };
    action.cluster_specifier = Some(ClusterSpecifier::WeightedClusters(weighted));
}

fn mirrors(plan: &RuleRoute) -> Vec<RequestMirrorPolicy> {
    let route = plan.route();
    // An explicit 0 disables mirroring.
    let of_route = match (&route.mirror_percentage, route.mirror_percent) {
        (Some(share), _) => (share.value > 0.0).then(|| millionths(share)),
        (None, Some(share)) => (share > 0).then(|| percent(share)),
        (None, None) => Some(percent(100)),
    };
    let first = plan.mirror.as_ref().zip(of_route);
    let others = route.mirrors.iter().zip(&plan.mirrors).filter_map(|(mirror, cluster)| {
        let share = match &mirror.percentage {
            Some(share) => (share.value > 0.0).then(|| millionths(share)),
            None => Some(percent(100)),
        };
        cluster.as_ref().zip(share)
    });
    first.into_iter().chain(others).map(|(cluster, share)| mirror_policy(plan, cluster, share)).collect()
}

fn mirror_policy(plan: &RuleRoute, cluster: &str, share: FractionalPercent) -> RequestMirrorPolicy {
    RequestMirrorPolicy {
        cluster: cluster.into(),
        runtime_fraction: Some(RuntimeFractionalPercent {
            default_value: Some(share),
            ..RuntimeFractionalPercent::default()
        }),
        trace_sampled: Some(false),
        disable_shadow_host_suffix_append: plan.flags.plain_mirror_host,
        ..RequestMirrorPolicy::default()
    }
}
