//! Matches of HTTP and gRPC routes, and their order of precedence.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use api::istio::networking::v1alpha3::string_match::MatchType;
use api::istio::networking::v1alpha3::{HttpMatchRequest, HttpRoute, StringMatch};

use super::conditions::ConditionFault;
use crate::config::gateway_api::{GrpcMatch, GrpcMethod, HttpMatch, PathMatch, ValueMatch};

const INVALID: &str = "InvalidConfiguration";

pub(super) fn http(written: &HttpMatch) -> Result<HttpMatchRequest, ConditionFault> {
    Ok(HttpMatchRequest {
        uri: Some(path(&written.path)?),
        headers: values(&written.headers, "HeaderMatch")?,
        query_params: values(&written.query_params, "QueryParams")?,
        method: written.method.clone().map(|method| text(MatchType::Exact(method))),
        ..HttpMatchRequest::default()
    })
}

pub(super) fn grpc(written: &GrpcMatch) -> Result<HttpMatchRequest, ConditionFault> {
    Ok(HttpMatchRequest {
        uri: written.method.as_ref().map(method).transpose()?,
        headers: values(&written.headers, "HeaderMatch")?,
        ..HttpMatchRequest::default()
    })
}

fn path(path: &PathMatch) -> Result<StringMatch, ConditionFault> {
    let value = path.value.clone();
    Ok(text(match path.kind.as_str() {
        "PathPrefix" if value != "/" => MatchType::Prefix(value.strip_suffix('/').unwrap_or(&value).to_owned()),
        "PathPrefix" => MatchType::Prefix(value),
        "Exact" => MatchType::Exact(value),
        "RegularExpression" => MatchType::Regex(value),
        other => return Err(unknown(other, "Path match")),
    }))
}

/// A gRPC call's path is `/service/method`.
fn method(method: &GrpcMethod) -> Result<StringMatch, ConditionFault> {
    let is_regex = match method.kind.as_str() {
        "Exact" => false,
        "RegularExpression" => true,
        other => return Err(unknown(other, "Path match")),
    };
    Ok(text(match (&method.service, &method.method) {
        (None, None) => return Err(ConditionFault::new(INVALID, "gRPC match must have method or service defined")),
        (Some(service), None) if is_regex => MatchType::Regex(format!("/{service}/.+")),
        (Some(service), None) => MatchType::Prefix(format!("/{service}/")),
        (None, Some(method)) => MatchType::Regex(format!("/[^/]+/{method}")),
        (Some(service), Some(method)) if is_regex => MatchType::Regex(format!("/{service}/{method}")),
        (Some(service), Some(method)) => MatchType::Exact(format!("/{service}/{method}")),
    }))
}

fn values(written: &[ValueMatch], what: &str) -> Result<BTreeMap<String, StringMatch>, ConditionFault> {
    let one = |value: &ValueMatch| {
        let matching = match value.kind.as_str() {
            "Exact" => MatchType::Exact(value.value.clone()),
            "RegularExpression" => MatchType::Regex(value.value.clone()),
            other => return Err(unknown(other, what)),
        };
        Ok((value.name.clone(), text(matching)))
    };
    written.iter().map(one).collect()
}

fn unknown(kind: &str, what: &str) -> ConditionFault {
    ConditionFault::new(INVALID, format!("unknown type: {kind:?} is not supported {what} type"))
}

fn text(matching: MatchType) -> StringMatch {
    StringMatch { match_type: Some(matching) }
}

/// Sorts routes by the precedence of the Gateway API; the sort is stable.
pub(super) fn sort(routes: &mut [HttpRoute]) {
    routes.sort_by_cached_key(|route| {
        let Some(first) = route.r#match.first() else {
            return (true, Reverse((0, 0)), true, Reverse(0), Reverse(0));
        };
        let uri = Reverse(rank(first.uri.as_ref()));
        (false, uri, first.method.is_none(), Reverse(first.headers.len()), Reverse(first.query_params.len()))
    });
}

/// Exact paths, then prefixes, then regular expressions; longer before shorter.
fn rank(uri: Option<&StringMatch>) -> (u8, usize) {
    match uri.and_then(|uri| uri.match_type.as_ref()) {
        None => (0, 0),
        Some(MatchType::Regex(regex)) => (1, regex.len()),
        Some(MatchType::Prefix(prefix)) => (2, prefix.len()),
        Some(MatchType::Exact(path)) => (3, path.len()),
    }
}
