//! Rules of HTTP routes in a VirtualService.

use api::istio::networking::v1alpha3::http_body::Specifier;
use api::istio::networking::v1alpha3::http_fault_injection::abort::ErrorType;
use api::istio::networking::v1alpha3::http_fault_injection::delay::HttpDelayType;
use api::istio::networking::v1alpha3::http_fault_injection::{Abort, Delay};
use api::istio::networking::v1alpha3::http_redirect::RedirectPort;
use api::istio::networking::v1alpha3::string_match::MatchType;
use api::istio::networking::v1alpha3::{
    CorsPolicy, Headers, HttpDirectResponse, HttpFaultInjection, HttpMatchRequest, HttpMirrorPolicy, HttpRedirect,
    HttpRetry, HttpRewrite, HttpRoute, Percent, StringMatch,
};

use super::names::{self, is_dns_label};
use super::report::{Report, Rule, Violation};
use super::route_parts::{destination, gateway_names, match_port, total_weight, weight};
use super::{headers, http_status};
use crate::config::pattern::{self, PatternError};
use crate::grpc;

const RETRY_POLICIES: &[&str] = &[
    "5xx",
    "gateway-error",
    "reset",
    "reset-before-request",
    "connect-failure",
    "retriable-4xx",
    "refused-stream",
    "retriable-status-codes",
    "retriable-headers",
    "envoy-ratelimited",
    "http3-post-connect-failure",
    "cancelled",
    "deadline-exceeded",
    "internal",
    "resource-exhausted",
    "unavailable",
];

const CORS_METHODS: &[&str] = &["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE", "*"];

pub(super) fn check(route: &HttpRoute, in_delegate: bool, report: &mut Report) {
    conflicts(route, in_delegate, report);
    report.each("match", &route.r#match, request_match);
    report.given("headers", route.headers.as_ref(), |report, changes| headers::changes(changes, report));
    report.given("corsPolicy", route.cors_policy.as_ref(), cors);
    report.given("fault", route.fault.as_ref(), fault);
    mirror(route, report);
    report.given("redirect", route.redirect.as_ref(), |report, it| report.check(redirect(it, &route.r#match)));
    report.given("directResponse", route.direct_response.as_ref(), direct_response);
    report.given("retries", route.retries.as_ref(), retries);
    report.given("rewrite", route.rewrite.as_ref(), |report, it| report.check(rewrite(it)));
    report.check(single_authority(route.rewrite.as_ref(), route.headers.as_ref()));
    report.each("route", &route.route, |report, to| {
        report.error_if(to.destination.is_none(), "destination is required");
        report.given("headers", to.headers.as_ref(), |report, changes| headers::changes(changes, report));
        report.given("destination", to.destination.as_ref(), destination);
        report.check(weight(to.weight));
    });
    total_weight(route.route.iter().map(|to| to.weight), report);
    names::duration_if_given(route.timeout.as_ref(), "timeout", report);
}

/// Parts of a route that exclude each other.
fn conflicts(route: &HttpRoute, in_delegate: bool, report: &mut Report) {
    if route.delegate.is_some() && !in_delegate {
        let name = &route.name;
        report.error_if(route.redirect.is_some(), format_args!("root HTTP route {name} must not specify redirect"));
        report.error_if(!route.route.is_empty(), format_args!("root HTTP route {name} must not specify route"));
        return;
    }
    report.error_if(route.delegate.is_some(), "delegate HTTP route cannot contain delegate");
    let answer = match (&route.redirect, &route.direct_response) {
        (Some(_), _) => Some("redirect"),
        (None, Some(_)) => Some("direct_response"),
        (None, None) => None,
    };
    if let Some(answer) = answer {
        let exclusive = [
            (!route.route.is_empty(), "HTTP route cannot contain both route"),
            (route.fault.is_some(), "HTTP route cannot contain both fault"),
            (route.rewrite.is_some(), "HTTP route rule cannot contain both rewrite"),
        ];
        for (given, text) in exclusive {
            report.error_if(given, format_args!("{text} and {answer}"));
        }
        let both = route.redirect.is_some() && route.direct_response.is_some();
        report.error_if(both, "HTTP route rule cannot contain both direct_response and redirect");
    } else {
        report.error_if(route.route.is_empty(), "HTTP route, redirect or direct_response is required");
    }
    let mirrors = route.mirror.is_some() && !route.mirrors.is_empty();
    report.error_if(mirrors, "HTTP route cannot contain both mirror and mirrors");
}

fn request_match(report: &mut Report, one: &HttpMatchRequest) {
    for (name, value) in &one.headers {
        report.check(headers::matched_name(name));
        report.check(string_match(Some(value), "headers"));
    }
    for (name, value) in &one.without_headers {
        report.check(headers::matched_name(name));
        // `*` is not a regular expression here: it matches any present header.
        if value.match_type != Some(MatchType::Regex("*".to_owned())) {
            report.check(string_match(Some(value), "withoutHeaders"));
        }
    }
    // Only a URI may be matched by an empty prefix.
    report.check(expression(one.uri.as_ref(), "uri"));
    report.check(string_match(one.scheme.as_ref(), "scheme"));
    report.check(string_match(one.method.as_ref(), "method"));
    report.check(string_match(one.authority.as_ref(), "authority"));
    for value in one.query_params.values() {
        report.check(string_match(Some(value), "queryParams"));
    }
    match_port(one.port, report);
    names::labels(&one.source_labels, report);
    gateway_names(&one.gateways, report);
    let namespace = &one.source_namespace;
    report.error_if(
        !namespace.is_empty() && !is_dns_label(namespace),
        format_args!("sourceNamespace match {namespace} is invalid"),
    );
}

fn string_match(value: Option<&StringMatch>, field: &str) -> Rule {
    match value.and_then(|value| value.match_type.as_ref()) {
        Some(MatchType::Prefix(prefix)) if prefix.is_empty() => {
            Err(Violation::from(format!("{field:?}: prefix string match should not be empty")))
        }
        _ => expression(value, field),
    }
}

fn expression(value: Option<&StringMatch>, field: &str) -> Rule {
    match value.and_then(|value| value.match_type.as_ref()) {
        Some(MatchType::Regex(regex)) if regex.is_empty() => {
            Err(Violation::from(format!("{field:?}: regex string match should not be empty")))
        }
        Some(MatchType::Regex(regex)) => regular_expression(regex, field),
        _ => Ok(()),
    }
}

fn cors(report: &mut Report, policy: &CorsPolicy) {
    for origin in &policy.allow_origins {
        let text = match &origin.match_type {
            Some(MatchType::Exact(text) | MatchType::Prefix(text) | MatchType::Regex(text)) => text.as_str(),
            None => "",
        };
        match text.is_empty() {
            true => report.error("'' is not a valid match type for CORS allow origins"),
            false => report.check(expression(Some(origin), "corsPolicy.allowOrigins")),
        }
    }
    for method in &policy.allow_methods {
        let known = CORS_METHODS.contains(&method.as_str());
        report.error_if(!known, format_args!("{method:?} is not a supported HTTP method"));
    }
    for name in policy.allow_headers.iter().chain(&policy.expose_headers) {
        report.check(headers::cors_name(name));
    }
    report.given("maxAge", policy.max_age.as_ref(), |report, age| {
        report.check(names::duration(age));
        report.error_if(age.nanos > 0, "max_age duration is accurate only to seconds precision");
    });
}

fn fault(report: &mut Report, fault: &HttpFaultInjection) {
    let empty = fault.abort.is_none() && fault.delay.is_none();
    report.error_if(empty, "HTTP fault injection must have an abort and/or a delay");
    report.given("abort", fault.abort.as_ref(), abort);
    report.given("delay", fault.delay.as_ref(), delay);
}

fn abort(report: &mut Report, abort: &Abort) {
    report.check(percentage(abort.percentage.as_ref()));
    match &abort.error_type {
        Some(ErrorType::GrpcStatus(status)) => report.error_if(
            grpc::status(status).is_none(),
            format_args!(
                "gRPC status {status:?} is not supported. See https://github.com/grpc/grpc/blob/master/doc/statuscodes.md \
                 for a list of supported codes, for example 'NOT_FOUND'"
            ),
        ),
        Some(ErrorType::Http2Error(_)) => report.error("HTTP/2 abort fault injection not supported yet"),
        Some(ErrorType::HttpStatus(status)) => report.check(status_code((*status).into())),
        None => report.warn("abort configured, but error type not set"),
    }
}

fn delay(report: &mut Report, delay: &Delay) {
    report.check(percentage(delay.percentage.as_ref()));
    match &delay.http_delay_type {
        Some(HttpDelayType::FixedDelay(fixed)) => report.check(names::duration(fixed)),
        Some(HttpDelayType::ExponentialDelay(_)) => report.error("exponentialDelay not supported yet"),
        None => {}
    }
}

fn status_code(status: i64) -> Rule {
    match status {
        200..=600 => Ok(()),
        _ => Err(Violation::from(format!("HTTP status {status} is not in range 200-599"))),
    }
}

fn percentage(percent: Option<&Percent>) -> Rule {
    match percent.map(|percent| percent.value) {
        Some(value) if !(0.0..=100.0).contains(&value) || (value > 0.0 && value < 0.0001) => {
            Err(Violation::from(format!("percentage {value} is neither 0.0, nor in range [0.0001, 100.0]")))
        }
        _ => Ok(()),
    }
}

fn mirror(route: &HttpRoute, report: &mut Report) {
    if let Some(percent) = route.mirror_percent {
        report.error_if(percent > 100, format_args!("mirror_percent must have a max value of 100 (it has {percent})"));
        report.warn("using deprecated setting \"mirrorPercent\", use \"mirrorPercentage\" instead");
    }
    mirror_percentage(route.mirror_percentage.as_ref(), "mirror_percentage", report);
    report.given("mirror", route.mirror.as_ref(), destination);
    report.each("mirrors", &route.mirrors, |report, mirror: &HttpMirrorPolicy| {
        report.error_if(mirror.destination.is_none(), "destination is required for mirrors");
        report.given("destination", mirror.destination.as_ref(), destination);
        mirror_percentage(mirror.percentage.as_ref(), "mirror percentage", report);
    });
}

fn mirror_percentage(percent: Option<&Percent>, name: &str, report: &mut Report) {
    let Some(Percent { value }) = percent else { return };
    report.error_if(*value > 100.0, format_args!("{name} must have a max value of 100 (it has {value})"));
    report.error_if(*value < 0.0, format_args!("{name} must have a min value of 0 (it has {value})"));
}

fn redirect(redirect: &HttpRedirect, matches: &[HttpMatchRequest]) -> Rule {
    let broken = |text: &str| Err(Violation::from(text));
    if !redirect.uri.is_empty() && !redirect.prefix_rewrite.is_empty() {
        return broken("redirect may only specify one of uri or prefix_rewrite");
    }
    let by_prefix = |one: &HttpMatchRequest| {
        one.uri.as_ref().is_none_or(|uri| matches!(uri.match_type, Some(MatchType::Prefix(_))))
    };
    if !redirect.prefix_rewrite.is_empty() && !matches.iter().all(by_prefix) {
        return broken("redirect prefix_rewrite requires all URI matches to use prefix match type");
    }
    let texts = [&redirect.uri, &redirect.prefix_rewrite, &redirect.authority, &redirect.scheme];
    if texts.iter().all(|text| text.is_empty()) && redirect.redirect_port.is_none() {
        return broken("redirect must specify URI, authority, scheme, or port");
    }
    if !matches!(redirect.redirect_code, 0 | 300..=399) {
        return Err(Violation::from(format!("{} is not a valid redirect code, must be 3xx", redirect.redirect_code)));
    }
    if !matches!(redirect.scheme.as_str(), "" | "http" | "https") {
        return broken("invalid redirect scheme, must be \"http\" or \"https\"");
    }
    match redirect.redirect_port {
        Some(RedirectPort::Port(port)) if port > 0 => names::port(port),
        _ => Ok(()),
    }
}

fn direct_response(report: &mut Report, response: &HttpDirectResponse) {
    let size = match response.body.as_ref().and_then(|body| body.specifier.as_ref()) {
        Some(Specifier::String(text)) => text.len(),
        Some(Specifier::Bytes(bytes)) => bytes.len(),
        None => 0,
    };
    const LARGE: &str = "large direct_responses may impact control plane performance";
    match size {
        0..=102_400 => {}
        102_401..=1_048_576 => report.warn(LARGE),
        _ => report.error(format_args!("{LARGE}, must be less than 1MB")),
    }
    report.check(status_code(response.status.into()));
}

fn retries(report: &mut Report, retries: &HttpRetry) {
    report.error_if(retries.attempts < 0, "attempts cannot be negative");
    let configured =
        retries.per_try_timeout.is_some() || !retries.retry_on.is_empty() || retries.retry_remote_localities.is_some();
    report.error_if(
        retries.attempts == 0 && configured,
        "http retry policy configured when attempts are set to 0 (disabled)",
    );
    names::duration_if_given(retries.per_try_timeout.as_ref(), "perTryTimeout", report);
    for policy in retries.retry_on.split(',').filter(|_| !retries.retry_on.is_empty()) {
        let known = RETRY_POLICIES.contains(&policy) || http_status::is_named(policy);
        report.error_if(!known, format_args!("{policy:?} is not a valid retryOn policy"));
    }
    names::duration_if_given(retries.backoff.as_ref(), "backoff", report);
}

fn rewrite(rewrite: &HttpRewrite) -> Rule {
    let regex = rewrite.uri_regex_rewrite.as_ref();
    if !rewrite.uri.is_empty() && regex.is_some() {
        return Err(Violation::from("rewrite may only contain one of URI or UriRegexRewrite".to_owned()));
    }
    let Some(regex) = regex else {
        return match rewrite.uri.is_empty() && rewrite.authority.is_empty() {
            true => Err(Violation::from(
                "rewrite must specify at least one of URI, UriRegexRewrite, or authority. \
                         Only one of URI or UriRegexRewrite may be specified"
                    .to_owned(),
            )),
            false => Ok(()),
        };
    };
    if regex.r#match.is_empty() || regex.rewrite.is_empty() {
        return Err(Violation::from(
            "UriRegexRewrite requires both Rewrite and Match fields to be specified".to_owned(),
        ));
    }
    regular_expression(&regex.r#match, "HTTPRewrite.UriRegexRewrite.Match")
}

fn regular_expression(text: &str, field: &str) -> Rule {
    match pattern::compile(text) {
        Ok(_) => Ok(()),
        Err(error @ PatternError::TooLong) => Err(Violation::from(format!("{field:?}: {error}"))),
        Err(error) => Err(Violation::from(format!(
            "{field:?}: {error}; Istio uses RE2 style regex-based match (https://github.com/google/re2/wiki/Syntax)"
        ))),
    }
}

/// The authority may be rewritten in only one place.
fn single_authority(rewrite: Option<&HttpRewrite>, headers: Option<&Headers>) -> Rule {
    let mut current = rewrite.map_or("", |rewrite| rewrite.authority.as_str());
    let Some(request) = headers.and_then(|headers| headers.request.as_ref()) else {
        return Ok(());
    };
    for (_, value) in request.set.iter().chain(&request.add).filter(|(name, _)| headers::is_authority(name)) {
        if !current.is_empty() {
            return Err(Violation::from(format!(
                "authority header cannot be set multiple times: have {current:?}, attempting to set {value:?}"
            )));
        }
        current = value;
    }
    Ok(())
}
