//! Converts rules of HTTPRoutes and GRPCRoutes to routes of a VirtualService, one per match.

use std::collections::BTreeMap;

use api::istio::networking::v1alpha3::cors_policy::UnmatchedPreflights;
use api::istio::networking::v1alpha3::headers::HeaderOperations;
use api::istio::networking::v1alpha3::http_redirect::{RedirectPort, RedirectPortSelection};
use api::istio::networking::v1alpha3::string_match::MatchType;
use api::istio::networking::v1alpha3::{
    CorsPolicy, Headers, HttpDirectResponse, HttpMatchRequest, HttpMirrorPolicy, HttpRedirect, HttpRetry, HttpRewrite,
    HttpRoute, HttpRouteDestination, Percent, RegexRewrite, StringMatch,
};
use prost_types::Duration;

use super::backends::{self, Referrer};
use super::conditions::ConditionFault;
use super::conversion::RouteConversion;
use super::matches;
use crate::config::Kind;
use crate::config::gateway_api::{
    BackendRef, Cors, Filter, GrpcRule, HeaderFilter, HeaderValue, HttpRule, Mirror, Redirect, Rewrite, RouteRetry,
};
use crate::duration;

/// Retry conditions of every rule with retries.
const ALWAYS_RETRIED: &str = "connect-failure,refused-stream,unavailable,cancelled";
/// Retry condition of requests that got no response: the connection ended, or the time of the attempt.
const LOST_RETRIED: &str = ",reset";
/// Any valid origin: a scheme, a host and optionally a port.
const ANY_ORIGIN: &str = r"^[a-zA-Z][a-zA-Z0-9+.-]*://[^/\s?#]+$";

/// The rules of an HTTPRoute.
pub(super) fn http_rules(referrer: Referrer<'_>, rules: &[HttpRule]) -> RouteConversion<HttpRoute> {
    RouteConversion::collect(rules.iter().enumerate().flat_map(|(position, rule)| {
        let each = each_match(&rule.matches, matches::http);
        each.map(move |matching| http_rule(referrer, rule, position, matching?))
    }))
}

/// The rules of a GRPCRoute.
pub(super) fn grpc_rules(referrer: Referrer<'_>, rules: &[GrpcRule]) -> RouteConversion<HttpRoute> {
    RouteConversion::collect(rules.iter().enumerate().flat_map(|(position, rule)| {
        let each = each_match(&rule.matches, matches::grpc);
        each.map(move |matching| {
            let mut out = named(referrer, rule.name.as_ref(), position, matching?);
            apply(referrer, &rule.filters, &mut out)?;
            let fault = send(referrer, &rule.backend_refs, &mut out)?;
            Ok((out, fault))
        })
    }))
}

/// The matches of a rule; a single `None` if there are none.
fn each_match<M>(
    written: &[M],
    convert: fn(&M) -> Result<HttpMatchRequest, ConditionFault>,
) -> impl Iterator<Item = Result<Option<HttpMatchRequest>, ConditionFault>> {
    let none = written.is_empty().then_some(Ok(None));
    none.into_iter().chain(written.iter().map(move |one| convert(one).map(Some)))
}

fn named(
    referrer: Referrer<'_>,
    name: Option<&String>,
    position: usize,
    matching: Option<HttpMatchRequest>,
) -> HttpRoute {
    let meta = referrer.meta;
    let automatic = || format!("{}.{}.{position}", meta.namespace, meta.name);
    HttpRoute {
        name: name.cloned().unwrap_or_else(automatic),
        r#match: matching.into_iter().collect(),
        ..HttpRoute::default()
    }
}

fn http_rule(
    referrer: Referrer<'_>,
    rule: &HttpRule,
    position: usize,
    matching: Option<HttpMatchRequest>,
) -> Result<(HttpRoute, Option<ConditionFault>), ConditionFault> {
    let mut out = named(referrer, rule.name.as_ref(), position, matching);
    let mirror_fault = apply(referrer, &rule.filters, &mut out)?;
    out.retries = rule.retry.as_ref().map(|retry| retries(referrer, retry));
    out.timeout = rule.timeouts.request.as_deref().and_then(timeout);
    if let Some(limit) = rule.timeouts.backend_request.as_deref().and_then(timeout) {
        match &mut out.retries {
            Some(retries) => retries.per_try_timeout = Some(limit),
            None => out.timeout = Some(limit),
        }
    }
    let fault = send(referrer, &rule.backend_refs, &mut out)?;
    Ok((out, ConditionFault::joined(fault, mirror_fault)))
}

/// Routes to the backends; without any weight requests fail.
fn send(
    referrer: Referrer<'_>,
    backends: &[BackendRef],
    out: &mut HttpRoute,
) -> Result<Option<ConditionFault>, ConditionFault> {
    if backends::is_empty(backends) && out.redirect.is_none() {
        out.direct_response = Some(HttpDirectResponse { status: 500, ..HttpDirectResponse::default() });
        return Ok(None);
    }
    let mut newest = None;
    for (backend, weight) in backends::shares(backends) {
        let (destination, fault) = referrer.destination(backend)?;
        newest = fault.or(newest);
        let mut route = HttpRouteDestination { destination: Some(destination), weight, headers: None };
        for filter in &backend.filters {
            if !set_headers(filter, &mut route.headers)? {
                return Err(unsupported(filter));
            }
        }
        out.route.push(route);
    }
    Ok(newest)
}

/// Applies the filters of a rule. A mirror without a valid backend is left out and reported.
fn apply(
    referrer: Referrer<'_>,
    filters: &[Filter],
    out: &mut HttpRoute,
) -> Result<Option<ConditionFault>, ConditionFault> {
    let is_http = referrer.kind == Kind::HttpRoute;
    let mut mirror_fault = None;
    for filter in filters {
        if set_headers(filter, &mut out.headers)? {
            continue;
        }
        match filter.kind.as_str() {
            "RequestMirror" => match filter.request_mirror.as_ref().map(|m| mirror(referrer, m)).transpose() {
                Ok(found) => out.mirrors.extend(found),
                Err(fault) if is_http => mirror_fault = Some(fault),
                Err(fault) => return Err(fault),
            },
            "RequestRedirect" if is_http => out.redirect = filter.request_redirect.as_ref().map(redirect),
            "URLRewrite" if is_http => out.rewrite = filter.url_rewrite.as_ref().and_then(rewrite),
            "CORS" if is_http => out.cors_policy = filter.cors.as_ref().map(cors),
            _ => return Err(unsupported(filter)),
        }
    }
    Ok(mirror_fault)
}

fn unsupported(filter: &Filter) -> ConditionFault {
    ConditionFault::new("InvalidFilter", format!("unsupported filter type {:?}", filter.kind))
}

/// Applies a header filter; false for other filters.
fn set_headers(filter: &Filter, headers: &mut Option<Headers>) -> Result<bool, ConditionFault> {
    match filter.kind.as_str() {
        "RequestHeaderModifier" => {
            if let Some(written) = &filter.request_header_modifier {
                headers.get_or_insert_default().request = Some(operations(written)?);
            }
        }
        "ResponseHeaderModifier" => {
            if let Some(written) = &filter.response_header_modifier {
                headers.get_or_insert_default().response = Some(operations(written)?);
            }
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn operations(filter: &HeaderFilter) -> Result<HeaderOperations, ConditionFault> {
    let is_good = |value: &str| value.bytes().all(|b| b == b'\t' || (b >= b' ' && b != 0x7F));
    if let Some(bad) = filter.set.iter().chain(&filter.add).find(|h| !is_good(&h.value)) {
        return Err(ConditionFault::new(
            "InvalidFilter",
            format!("header {:?} value contains invalid characters", bad.name),
        ));
    }
    Ok(HeaderOperations { set: header_map(&filter.set), add: header_map(&filter.add), remove: filter.remove.clone() })
}

/// The first of several headers with one name wins.
fn header_map(headers: &[HeaderValue]) -> BTreeMap<String, String> {
    let mut map = BTreeMap::new();
    for header in headers {
        map.entry(header.name.to_lowercase()).or_insert_with(|| header.value.clone());
    }
    map
}

fn mirror(referrer: Referrer<'_>, mirror: &Mirror) -> Result<HttpMirrorPolicy, ConditionFault> {
    let (destination, fault) = referrer.destination(&mirror.backend_ref)?;
    if let Some(fault) = fault {
        return Err(fault);
    }
    let fraction = mirror.fraction.as_ref().map(|f| 100.0 * f64::from(f.numerator) / f64::from(f.denominator));
    let percentage = fraction.or_else(|| mirror.percent.map(f64::from)).map(|value| Percent { value });
    Ok(HttpMirrorPolicy { destination: Some(destination), percentage })
}

fn redirect(redirect: &Redirect) -> HttpRedirect {
    // Without a port, that of the request is kept unless the scheme changes.
    let derived = match redirect.scheme {
        Some(_) => RedirectPortSelection::FromProtocolDefault,
        None => RedirectPortSelection::FromRequestPort,
    };
    let port = redirect.port.map_or(RedirectPort::DerivePort(derived.into()), |p| RedirectPort::Port(u32::from(p)));
    let mut out = HttpRedirect {
        redirect_code: redirect.status_code,
        authority: redirect.hostname.clone().unwrap_or_default(),
        scheme: redirect.scheme.clone().unwrap_or_default(),
        redirect_port: Some(port),
        ..HttpRedirect::default()
    };
    if let Some(path) = &redirect.path {
        match path.kind.as_str() {
            "ReplaceFullPath" => out.uri.clone_from(&path.replace_full_path),
            "ReplacePrefixMatch" => out.prefix_rewrite.clone_from(&path.replace_prefix_match),
            _ => {}
        }
    }
    out
}

fn rewrite(rewrite: &Rewrite) -> Option<HttpRewrite> {
    let mut out = HttpRewrite { authority: rewrite.hostname.clone().unwrap_or_default(), ..HttpRewrite::default() };
    if let Some(path) = &rewrite.path {
        match path.kind.as_str() {
            "ReplacePrefixMatch" => {
                let prefix = path.replace_prefix_match.strip_suffix('/').unwrap_or(&path.replace_prefix_match);
                // `/` removes the prefix.
                out.uri = if prefix.is_empty() { "/".to_owned() } else { prefix.to_owned() };
            }
            "ReplaceFullPath" => {
                let whole = path.replace_full_path.clone();
                out.uri_regex_rewrite = Some(RegexRewrite { r#match: "/.*".to_owned(), rewrite: whole });
            }
            _ => {}
        }
    }
    (out != HttpRewrite::default()).then_some(out)
}

fn cors(cors: &Cors) -> CorsPolicy {
    CorsPolicy {
        allow_origins: cors.allow_origins.iter().filter(|o| !o.is_empty()).map(|o| origin(o)).collect(),
        allow_credentials: cors.allow_credentials.then_some(true),
        allow_methods: cors.allow_methods.clone(),
        allow_headers: cors.allow_headers.clone(),
        expose_headers: cors.expose_headers.clone(),
        max_age: (cors.max_age > 0).then(|| Duration { seconds: i64::from(cors.max_age), nanos: 0 }),
        unmatched_preflights: UnmatchedPreflights::Ignore.into(),
        ..CorsPolicy::default()
    }
}

fn origin(origin: &str) -> StringMatch {
    let matching = match origin.matches('*').count() {
        0 => MatchType::Exact(origin.to_owned()),
        1 if origin == "*" => MatchType::Regex(ANY_ORIGIN.to_owned()),
        1 if origin.ends_with('*') => MatchType::Prefix(origin.trim_end_matches('*').to_owned()),
        _ => MatchType::Regex(format!("^{}$", quoted(origin).replace(r"\*", ".*"))),
    };
    StringMatch { match_type: Some(matching) }
}

/// Escapes text for a regular expression.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

fn retries(referrer: Referrer<'_>, retry: &RouteRetry) -> HttpRetry {
    let attempts = retry.attempts.unwrap_or(2);
    // The Gateway API also wants retries of requests whose connection ends before the response. Upstream does not.
    let at_our_gateway = !referrer.is_mesh && referrer.snapshot.settings().knobs.deploy_gateways;
    let lost = at_our_gateway.then(|| LOST_RETRIED.to_owned());
    let codes = retry.codes.iter().map(|code| format!(",{code}"));
    let retry_on = std::iter::once(ALWAYS_RETRIED.to_owned()).chain(lost).chain(codes).collect();
    HttpRetry {
        attempts,
        retry_on: if attempts == 0 { String::new() } else { retry_on },
        backoff: retry.backoff.as_deref().map(|text| duration::parse(text).unwrap_or_default()),
        ..HttpRetry::default()
    }
}

/// A timeout; zero means none.
fn timeout(text: &str) -> Option<Duration> {
    duration::parse(text).filter(|limit| *limit != Duration::default())
}
