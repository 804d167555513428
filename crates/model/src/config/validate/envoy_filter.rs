//! Rules of EnvoyFilter.

use api::Struct;
use api::istio::networking::v1alpha3::EnvoyFilter;
use api::istio::networking::v1alpha3::envoy_filter::envoy_config_object_match::ObjectTypes;
use api::istio::networking::v1alpha3::envoy_filter::listener_match::FilterMatch;
use api::istio::networking::v1alpha3::envoy_filter::patch::Operation;
use api::istio::networking::v1alpha3::envoy_filter::{
    ApplyTo, EnvoyConfigObjectMatch, EnvoyConfigObjectPatch, PatchContext,
};

use super::report::{Report, Rule, Violation};
use super::selector;
use crate::config::problem::Severity;
use crate::config::{patches, pattern};

const CONNECTION_MANAGER: &str = "envoy.filters.network.http_connection_manager";

/// Deprecated filter names and their current names.
const OLD_NAMES: &[(&str, &str)] = &[
    ("envoy.buffer", "envoy.filters.http.buffer"),
    ("envoy.cors", "envoy.filters.http.cors"),
    ("envoy.csrf", "envoy.filters.http.csrf"),
    ("envoy.http_dynamo_filter", "envoy.filters.http.dynamo"),
    ("envoy.ext_authz", "envoy.filters.http.ext_authz"),
    ("envoy.fault", "envoy.filters.http.fault"),
    ("envoy.grpc_http1_bridge", "envoy.filters.http.grpc_http1_bridge"),
    ("envoy.grpc_json_transcoder", "envoy.filters.http.grpc_json_transcoder"),
    ("envoy.grpc_web", "envoy.filters.http.grpc_web"),
    ("envoy.gzip", "envoy.filters.http.gzip"),
    ("envoy.health_check", "envoy.filters.http.health_check"),
    ("envoy.ip_tagging", "envoy.filters.http.ip_tagging"),
    ("envoy.lua", "envoy.filters.http.lua"),
    ("envoy.rate_limit", "envoy.filters.http.ratelimit"),
    ("envoy.router", "envoy.filters.http.router"),
    ("envoy.squash", "envoy.filters.http.squash"),
    ("envoy.listener.http_inspector", "envoy.filters.listener.http_inspector"),
    ("envoy.listener.original_dst", "envoy.filters.listener.original_dst"),
    ("envoy.listener.original_src", "envoy.filters.listener.original_src"),
    ("envoy.listener.proxy_protocol", "envoy.filters.listener.proxy_protocol"),
    ("envoy.listener.tls_inspector", "envoy.filters.listener.tls_inspector"),
    ("envoy.client_ssl_auth", "envoy.filters.network.client_ssl_auth"),
    ("envoy.http_connection_manager", CONNECTION_MANAGER),
    ("envoy.mongo_proxy", "envoy.filters.network.mongo_proxy"),
    ("envoy.ratelimit", "envoy.filters.network.ratelimit"),
    ("envoy.redis_proxy", "envoy.filters.network.redis_proxy"),
    ("envoy.tcp_proxy", "envoy.filters.network.tcp_proxy"),
];

pub(super) fn check(filter: &EnvoyFilter, report: &mut Report) {
    selector::networking(filter.workload_selector.as_ref().map(|selector| &selector.labels), "Envoy filter", report);
    report.each("configPatches", &filter.config_patches, |report, patch| {
        // Upstream does not check patches for waypoints.
        let context = patch.r#match.as_ref().map(EnvoyConfigObjectMatch::context);
        if context != Some(PatchContext::Waypoint) {
            report.check(config_patch(patch).map_err(|message| Violation::from(format!("Envoy filter: {message}"))));
            warnings(patch, report);
        }
    });
}

/// The first error of a patch.
fn config_patch(it: &EnvoyConfigObjectPatch) -> Rule {
    let broken = |text: &str| Err(Violation::from(text));
    if it.apply_to() == ApplyTo::Invalid {
        return broken("missing applyTo");
    }
    let Some(patch) = &it.patch else {
        return broken("missing patch");
    };
    if patch.operation() == Operation::Invalid {
        return broken("missing patch operation");
    }
    if patch.operation() != Operation::Remove && patch.value.is_none() {
        return broken("missing patch value for non-remove operation");
    }
    let Some(one) = &it.r#match else {
        return Ok(());
    };
    let version = one.proxy.as_ref().map_or("", |proxy| proxy.proxy_version.as_str());
    if version.len() <= pattern::LONGEST {
        pattern::compile(version)
            .map_err(|error| Violation::from(format!("invalid regex for proxy version, [{error}]")))?;
    }
    match it.apply_to() {
        ApplyTo::Listener | ApplyTo::FilterChain | ApplyTo::NetworkFilter | ApplyTo::HttpFilter => {
            listener_match(it.apply_to(), one)
        }
        ApplyTo::RouteConfiguration | ApplyTo::VirtualHost | ApplyTo::HttpRoute => match &one.object_types {
            None | Some(ObjectTypes::RouteConfiguration(_)) => Ok(()),
            _ => broken("applyTo for http route class objects cannot have non route configuration match"),
        },
        ApplyTo::Cluster => match &one.object_types {
            None | Some(ObjectTypes::Cluster(_)) => Ok(()),
            _ => broken("applyTo for cluster class objects cannot have non cluster match"),
        },
        _ => Ok(()),
    }
}

fn listener_match(apply_to: ApplyTo, one: &EnvoyConfigObjectMatch) -> Rule {
    let broken = |text: &str| Err(Violation::from(text));
    if !matches!(one.object_types, None | Some(ObjectTypes::Listener(_))) {
        return broken("applyTo for listener class objects cannot have non listener match");
    }
    let Some(filter) = filter_of(one) else {
        return Ok(());
    };
    if filter.name.is_empty() {
        return broken("filter match has no name to match on");
    }
    let Some(inner) = &filter.sub_filter else {
        return Ok(());
    };
    if apply_to != ApplyTo::HttpFilter {
        return broken("subfilter match can be used with applyTo HTTP_FILTER only");
    }
    if filter.name != CONNECTION_MANAGER && filter.name != "envoy.http_connection_manager" {
        return Err(Violation::from(format!("subfilter match requires filter match with {CONNECTION_MANAGER}")));
    }
    if inner.name.is_empty() { broken("subfilter match has no name to match on") } else { Ok(()) }
}

fn filter_of(one: &EnvoyConfigObjectMatch) -> Option<&FilterMatch> {
    match &one.object_types {
        Some(ObjectTypes::Listener(listener)) => listener.filter_chain.as_ref()?.filter.as_ref(),
        _ => None,
    }
}

/// Parts without effect and deprecated names.
fn warnings(it: &EnvoyConfigObjectPatch, report: &mut Report) {
    if let Some(one) = &it.r#match {
        let version = one.proxy.as_ref().map_or(0, |proxy| proxy.proxy_version.len());
        let too_long = "Envoy filter: proxyVersion match exceeds 1024 characters and will be ignored";
        report.warn_if(version > pattern::LONGEST, too_long);
        if let Some(filter) = filter_of(one) {
            let apply_to = it.apply_to();
            report.warn_if(
                matches!(apply_to, ApplyTo::Listener | ApplyTo::FilterChain),
                format_args!("Envoy filter: filter match has no effect when used with {}", apply_to.as_str_name()),
            );
            old_name(&filter.name, report);
            old_name(filter.sub_filter.as_ref().map_or("", |inner| inner.name.as_str()), report);
        }
    }
    if let Some(value) = it.patch.as_ref().and_then(|patch| patch.value.as_ref()) {
        patch_value(it.apply_to(), value, report);
    }
}

fn old_name(name: &str, report: &mut Report) {
    if let Some((_, now)) = OLD_NAMES.iter().find(|(old, _)| *old == name) {
        report.warn(format_args!("using deprecated filter name {name:?}; use {now:?} instead"));
    }
}

/// An invalid value disables only its own patch.
fn patch_value(apply_to: ApplyTo, value: &Struct, report: &mut Report) {
    let Some((_, findings)) = patches::read_value(apply_to, value) else {
        return;
    };
    for finding in findings {
        match finding.severity {
            Severity::Error => {
                report.warn(format_args!("the patch has no effect: {}: {}", finding.path, finding.message))
            }
            _ => report.warn(format_args!("{} {:?}{}", finding.message, finding.path, finding.hint)),
        }
    }
}
