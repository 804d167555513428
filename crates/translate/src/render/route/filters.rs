//! Per-route filter config: fault injection, CORS, persistent sessions.

use std::collections::BTreeMap;

use api::Any;
use api::envoy::config::core::v3::{RuntimeFractionalPercent, TypedExtensionConfig};
use api::envoy::extensions::filters::common::fault::v3::FaultDelay;
use api::envoy::extensions::filters::common::fault::v3::fault_delay::FaultDelaySecifier;
use api::envoy::extensions::filters::http::cors::v3::CorsPolicy as EnvoyCors;
use api::envoy::extensions::filters::http::fault::v3::fault_abort::ErrorType as EnvoyError;
use api::envoy::extensions::filters::http::fault::v3::{FaultAbort, HttpFault};
use api::envoy::extensions::filters::http::stateful_session::v3::stateful_session_per_route::Override;
use api::envoy::extensions::filters::http::stateful_session::v3::{StatefulSession, StatefulSessionPerRoute};
use api::envoy::extensions::http::stateful_session::cookie::v3::CookieBasedSessionState;
use api::envoy::extensions::http::stateful_session::header::v3::HeaderBasedSessionState;
use api::envoy::r#type::http::v3::Cookie;
use api::envoy::r#type::matcher::v3::StringMatcher;
use api::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use api::envoy::r#type::v3::FractionalPercent;
use api::envoy::r#type::v3::fractional_percent::DenominatorType;
use api::istio::networking::v1alpha3::cors_policy::UnmatchedPreflights;
use api::istio::networking::v1alpha3::http_fault_injection::abort::ErrorType;
use api::istio::networking::v1alpha3::http_fault_injection::delay::HttpDelayType;
use api::istio::networking::v1alpha3::http_fault_injection::{Abort, Delay};
use api::istio::networking::v1alpha3::{CorsPolicy, HttpFaultInjection, Percent};
use model::grpc;

use super::matches::string_matcher;
use crate::plan::route::{RuleRoute, SessionState};

const FAULT: &str = "envoy.filters.http.fault";
const CORS: &str = "envoy.filters.http.cors";
const SESSION: &str = "envoy.filters.http.stateful_session";

/// The filter config of a rule.
pub(super) fn of_rule(plan: &RuleRoute) -> BTreeMap<String, Any> {
    let route = plan.route();
    let fault = route.fault.as_ref().map(|f| (FAULT.to_owned(), api::any(&fault(f))));
    let cors = route.cors_policy.as_ref().map(|c| (CORS.to_owned(), api::any(&cors(c))));
    let session = plan.session.as_ref().map(session);
    fault.into_iter().chain(cors).chain(session).collect()
}

/// Name and per-route config of the session filter.
pub(super) fn session(state: &SessionState) -> (String, Any) {
    let (name, config) = match state {
        SessionState::Cookie { name, path } => {
            let cookie = Cookie { name: name.to_string(), path: path.to_string(), ..Cookie::default() };
            let state = CookieBasedSessionState { cookie: Some(cookie) };
            ("envoy.http.stateful_session.cookie", api::any(&state))
        }
        SessionState::Header(name) => {
            let state = HeaderBasedSessionState { name: name.to_string() };
            ("envoy.http.stateful_session.header", api::any(&state))
        }
    };
    let state = TypedExtensionConfig { name: name.into(), typed_config: Some(config) };
    let session = StatefulSession { session_state: Some(state), ..StatefulSession::default() };
    let per_route = StatefulSessionPerRoute { r#override: Some(Override::StatefulSession(session)) };
    (SESSION.to_owned(), api::any(&per_route))
}

/// A percentage as parts per million.
pub(super) fn millionths(percent: &Percent) -> FractionalPercent {
    FractionalPercent { numerator: (percent.value * 10_000.0) as u32, denominator: DenominatorType::Million as i32 }
}

/// A whole percentage.
pub(super) fn percent(numerator: u32) -> FractionalPercent {
    FractionalPercent { numerator, denominator: DenominatorType::Hundred as i32 }
}

fn fault(fault: &HttpFaultInjection) -> HttpFault {
    HttpFault {
        delay: fault.delay.as_ref().and_then(delay),
        abort: fault.abort.as_ref().and_then(abort),
        ..HttpFault::default()
    }
}

fn delay(delay: &Delay) -> Option<FaultDelay> {
    // Envoy has no delays of random length.
    let Some(HttpDelayType::FixedDelay(fixed)) = &delay.http_delay_type else { return None };
    let share = delay.percentage.as_ref().map_or_else(|| percent(delay.percent as u32), millionths);
    Some(FaultDelay { percentage: Some(share), fault_delay_secifier: Some(FaultDelaySecifier::FixedDelay(*fixed)) })
}

fn abort(abort: &Abort) -> Option<FaultAbort> {
    let error = match abort.error_type.as_ref()? {
        ErrorType::HttpStatus(status) => EnvoyError::HttpStatus(*status as u32),
        // Validation rejects unknown status names.
        ErrorType::GrpcStatus(status) => EnvoyError::GrpcStatus(grpc::status(status).unwrap_or_default()),
        ErrorType::Http2Error(_) => return None,
    };
    Some(FaultAbort {
        percentage: abort.percentage.as_ref().map(millionths),
        error_type: Some(error),
        ..FaultAbort::default()
    })
}

fn cors(cors: &CorsPolicy) -> EnvoyCors {
    let exact = |text: &String| StringMatcher {
        match_pattern: Some(MatchPattern::Exact(text.clone())),
        ..StringMatcher::default()
    };
    let origins = if cors.allow_origins.is_empty() {
        cors.allow_origin.iter().map(exact).collect()
    } else {
        cors.allow_origins.iter().filter_map(string_matcher).collect()
    };
    let always = RuntimeFractionalPercent { default_value: Some(percent(100)), ..RuntimeFractionalPercent::default() };
    EnvoyCors {
        allow_origin_string_match: origins,
        allow_methods: cors.allow_methods.join(","),
        allow_headers: cors.allow_headers.join(","),
        expose_headers: cors.expose_headers.join(","),
        max_age: cors.max_age.map(|age| age.seconds.to_string()).unwrap_or_default(),
        allow_credentials: cors.allow_credentials,
        filter_enabled: Some(always),
        forward_not_matching_preflights: Some(cors.unmatched_preflights() != UnmatchedPreflights::Ignore),
        ..EnvoyCors::default()
    }
}
