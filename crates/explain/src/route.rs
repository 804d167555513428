//! Whether a route matches a request, and what it does with it.

use api::envoy::config::route::v3::query_parameter_matcher::QueryParameterMatchSpecifier;
use api::envoy::config::route::v3::route::Action;
use api::envoy::config::route::v3::route_action::HostRewriteSpecifier;
use api::envoy::config::route::v3::route_match::PathSpecifier;
use api::envoy::config::route::v3::{CookieMatcher, QueryParameterMatcher, Route, RouteMatch, VirtualHost};

use crate::explanation::PolicyStep;
use crate::matcher::{described, header_mismatch, is_full_match, is_match};
use crate::request::Request;
use crate::target::matched_length;

/// Why a route does not match a request; `None` if it does. Conditions on chance are in `conditions`.
pub(crate) fn mismatch(matcher: Option<&RouteMatch>, request: &Request) -> Option<String> {
    let Some(matcher) = matcher else { return Some("it has no match".to_owned()) };
    let by_path = path_mismatch(matcher, request);
    let by_header = || matcher.headers.iter().find_map(|m| header_mismatch(m, request.value(&m.name).as_deref()));
    let by_query = || matcher.query_parameters.iter().find_map(|m| query_mismatch(m, request));
    let by_cookie = || matcher.cookies.iter().find_map(|m| cookie_mismatch(m, request));
    by_path.or_else(by_header).or_else(by_query).or_else(by_cookie).or_else(|| other_mismatch(matcher, request))
}

fn path_mismatch(matcher: &RouteMatch, request: &Request) -> Option<String> {
    let is_sensitive = matcher.case_sensitive.unwrap_or(true);
    let fold = |text: &str| if is_sensitive { text.to_owned() } else { text.to_ascii_lowercase() };
    let (path, plain) = (fold(&request.path), fold(request.plain_path()));
    let shown = request.plain_path();
    match &matcher.path_specifier {
        Some(PathSpecifier::Prefix(prefix)) => {
            (!path.starts_with(&fold(prefix))).then(|| format!("path {shown} does not start with {prefix}"))
        }
        Some(PathSpecifier::Path(wanted)) => (plain != fold(wanted)).then(|| format!("path {shown} is not {wanted}")),
        Some(PathSpecifier::PathSeparatedPrefix(prefix)) => {
            let rest = plain.strip_prefix(&*fold(prefix));
            let is_below = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            (!is_below).then(|| format!("path {shown} is neither {prefix} nor below it"))
        }
        Some(PathSpecifier::SafeRegex(regex)) => {
            // Expressions ignore `case_sensitive`.
            let expression = &regex.regex;
            (!is_full_match(expression, request.plain_path()))
                .then(|| format!("path {shown} does not match the regular expression {expression}"))
        }
        Some(PathSpecifier::ConnectMatcher(_)) => {
            (request.method != "CONNECT").then(|| format!("method {} is not CONNECT", request.method))
        }
        Some(PathSpecifier::PathMatchPolicy(policy)) => {
            Some(format!("path templates ({}) cannot be evaluated here", policy.name))
        }
        None => Some("it matches no path".to_owned()),
    }
}

fn query_mismatch(matcher: &QueryParameterMatcher, request: &Request) -> Option<String> {
    let name = &matcher.name;
    let value = request.query().find(|(key, _)| key == name).map(|(_, value)| value);
    let had = value.map_or("it is missing".to_owned(), |value| format!("it is {value:?}"));
    match (&matcher.query_parameter_match_specifier, value) {
        (Some(QueryParameterMatchSpecifier::PresentMatch(present)), value) => (value.is_some() != *present)
            .then(|| format!("query parameter {name} must be {}; {had}", if *present { "present" } else { "missing" })),
        (None, value) => value.is_none().then(|| format!("query parameter {name} must be present; {had}")),
        (Some(QueryParameterMatchSpecifier::StringMatch(text)), value) => (!value.is_some_and(|v| is_match(text, v)))
            .then(|| format!("query parameter {name} matches only if it {}; {had}", described(text))),
    }
}

fn cookie_mismatch(matcher: &CookieMatcher, request: &Request) -> Option<String> {
    let cookies = request.value("cookie").unwrap_or_default();
    let pairs = cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
    let value = pairs.into_iter().find(|(name, _)| *name == matcher.name).map(|(_, value)| value);
    let matches = match (&matcher.string_match, value) {
        (Some(text), Some(value)) => is_match(text, value) != matcher.invert_match,
        (_, None) => false,
        (None, Some(_)) => !matcher.invert_match,
    };
    (!matches).then(|| format!("cookie {} does not match", matcher.name))
}

fn other_mismatch(matcher: &RouteMatch, request: &Request) -> Option<String> {
    let is_grpc = request.value("content-type").is_some_and(|kind| {
        kind == "application/grpc" || kind.starts_with("application/grpc+") || kind.starts_with("application/grpc;")
    });
    if matcher.grpc.is_some() && !is_grpc {
        return Some("the request is not gRPC".to_owned());
    }
    let is_never = matcher.runtime_fraction.as_ref().and_then(|f| f.default_value).is_some_and(|f| f.numerator == 0);
    if is_never {
        return Some("it matches 0 % of requests".to_owned());
    }
    if !matcher.dynamic_metadata.is_empty() || !matcher.filter_state.is_empty() {
        return Some("it depends on metadata of other filters, which is not known here".to_owned());
    }
    None
}

/// What the match depends on apart from the request.
pub(crate) fn conditions(matcher: Option<&RouteMatch>) -> Vec<String> {
    let Some(matcher) = matcher else { return Vec::new() };
    let mut found = Vec::new();
    if let Some(fraction) = matcher.runtime_fraction.as_ref().and_then(|fraction| fraction.default_value) {
        let of = [100, 10_000, 1_000_000].get(usize::try_from(fraction.denominator).unwrap_or(0)).copied();
        found.push(format!("the route takes {} of {} requests", fraction.numerator, of.unwrap_or(100)));
    }
    if matcher.tls_context.is_some() {
        found.push("the route depends on the client's certificate".to_owned());
    }
    found
}

/// What filters and the router do with requests of this route.
pub(crate) fn policies(route: &Route, host: &VirtualHost) -> Vec<PolicyStep> {
    let mut found = Vec::new();
    let mut add = |what: &str, detail: String| found.push(PolicyStep { what: what.to_owned(), detail });
    if let Some(Action::Route(action)) = &route.action {
        if let Some(timeout) = &action.timeout {
            let seconds = timeout.seconds as f64 + f64::from(timeout.nanos) / 1e9;
            add("timeout", if seconds == 0.0 { "none".to_owned() } else { format!("{seconds} s") });
        }
        if let Some(retries) = action.retry_policy.as_ref().or(host.retry_policy.as_ref()) {
            add("retries", format!("{} on {}", retries.num_retries.unwrap_or(1), retries.retry_on));
        }
        for mirror in &action.request_mirror_policies {
            add("mirror", mirror.cluster.clone());
        }
        if !action.prefix_rewrite.is_empty() {
            add("rewrite", format!("the matched prefix becomes {}", action.prefix_rewrite));
        }
        if let Some(rewrite) = &action.regex_rewrite {
            add("rewrite", format!("the path is rewritten with {}", rewrite.substitution));
        }
    }
    for (name, _) in
        host.typed_per_filter_config.iter().filter(|(name, _)| !route.typed_per_filter_config.contains_key(*name))
    {
        add("filter", format!("{name}, set by the virtual host"));
    }
    for name in route.typed_per_filter_config.keys() {
        add("filter", format!("{name}, set by the route"));
    }
    found
}

/// The request as the router sends it on. Rewrites with regular expressions and computed headers are left out.
pub(crate) fn forwarded(route: &Route, request: &Request) -> Request {
    let mut sent = request.clone();
    if let Some(Action::Route(action)) = &route.action {
        if !action.prefix_rewrite.is_empty() {
            let rest = request.path.get(matched_length(route, request)..).unwrap_or_default();
            sent.path = format!("{}{rest}", action.prefix_rewrite);
        }
        if let Some(HostRewriteSpecifier::HostRewriteLiteral(host)) = &action.host_rewrite_specifier {
            sent.authority.clone_from(host);
        }
    }
    sent.headers
        .retain(|(name, _)| !route.request_headers_to_remove.iter().any(|gone| gone.eq_ignore_ascii_case(name)));
    for header in route.request_headers_to_add.iter().filter_map(|option| option.header.as_ref()) {
        let name = header.key.to_ascii_lowercase();
        if !header.value.contains('%') && !name.starts_with(':') {
            sent.headers.retain(|(known, _)| *known != name);
            sent.headers.push((name, header.value.clone()));
        }
    }
    sent
}

#[cfg(test)]
mod tests {
    use super::{PathSpecifier, Request, RouteMatch, mismatch};

    #[test]
    fn paths_match_as_in_envoy() {
        let check = |specifier: PathSpecifier, path: &str, expected: Option<&str>| {
            let matcher = RouteMatch { path_specifier: Some(specifier), ..RouteMatch::default() };
            let request = Request::new("GET", &format!("http://a{path}")).unwrap();
            assert_eq!(mismatch(Some(&matcher), &request).as_deref(), expected, "{path}");
        };
        check(PathSpecifier::Prefix("/a".into()), "/ab?x=1", None);
        check(PathSpecifier::Prefix("/a".into()), "/b", Some("path /b does not start with /a"));
        check(PathSpecifier::Path("/a".into()), "/a?x=1", None);
        check(PathSpecifier::Path("/a".into()), "/a/", Some("path /a/ is not /a"));
        check(PathSpecifier::PathSeparatedPrefix("/a".into()), "/a/b", None);
        check(PathSpecifier::PathSeparatedPrefix("/a".into()), "/ab", Some("path /ab is neither /a nor below it"));
    }

    #[test]
    fn letter_case_matters_unless_switched_off() {
        let specifier = Some(PathSpecifier::Prefix("/A".into()));
        let request = Request::new("GET", "http://h/a").unwrap();
        let strict = RouteMatch { path_specifier: specifier.clone(), ..RouteMatch::default() };
        assert!(mismatch(Some(&strict), &request).is_some());
        let loose = RouteMatch { case_sensitive: Some(false), ..strict };
        assert_eq!(mismatch(Some(&loose), &request), None);
    }
}
