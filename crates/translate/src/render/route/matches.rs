//! Route matches: path, headers, query parameters, JWT claims.

use api::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use api::envoy::config::route::v3::query_parameter_matcher::QueryParameterMatchSpecifier;
use api::envoy::config::route::v3::route_match::PathSpecifier;
use api::envoy::config::route::v3::{HeaderMatcher, QueryParameterMatcher, RouteMatch};
use api::envoy::r#type::matcher::v3::metadata_matcher::{PathSegment, path_segment};
use api::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use api::envoy::r#type::matcher::v3::{
    ListMatcher, MetadataMatcher, OrMatcher, RegexMatcher, StringMatcher, ValueMatcher, list_matcher, value_matcher,
};
use api::istio::networking::v1alpha3::string_match::MatchType;
use api::istio::networking::v1alpha3::{HttpMatchRequest, StringMatch};
use model::snapshot::routing::Semantics;

/// A header match of this name is a JWT claim match.
const CLAIMS: &str = "@request.auth.claims";
const JWT_FILTER: &str = "envoy.filters.http.jwt_authn";
const JWT_PAYLOAD: &str = "payload";

/// Every path.
pub(super) fn any_path() -> RouteMatch {
    RouteMatch { path_specifier: Some(PathSpecifier::Prefix("/".into())), ..RouteMatch::default() }
}

/// One match of a VirtualService.
pub(super) fn route_match(request: &HttpMatchRequest, semantics: Semantics) -> RouteMatch {
    let mut out = RouteMatch {
        path_specifier: Some(path(request.uri.as_ref(), semantics)),
        case_sensitive: Some(!request.ignore_uri_case),
        ..RouteMatch::default()
    };
    for (name, text) in &request.headers {
        match claim(name, text) {
            Some(claim) => out.dynamic_metadata.push(claim),
            None => out.headers.push(header(name, text)),
        }
    }
    for (name, text) in &request.without_headers {
        match claim(name, text) {
            Some(claim) => out.dynamic_metadata.push(MetadataMatcher { invert: true, ..claim }),
            None => out.headers.push(HeaderMatcher {
                invert_match: true,
                // Envoy rejects this together with a presence match.
                treat_missing_header_as_empty: !is_presence(text),
                ..header(name, text)
            }),
        }
    }
    out.headers.sort_by(|a, b| a.name.cmp(&b.name));
    let pseudo = [(":method", &request.method), (":authority", &request.authority), (":scheme", &request.scheme)];
    out.headers.extend(pseudo.into_iter().filter_map(|(name, text)| text.as_ref().map(|text| header(name, text))));
    out.query_parameters = request.query_params.iter().map(|(name, text)| query_parameter(name, text)).collect();
    out
}

/// The path in trace operation names.
pub(super) fn path_text(out: &RouteMatch) -> String {
    match &out.path_specifier {
        Some(PathSpecifier::Prefix(prefix)) => format!("{prefix}*"),
        Some(PathSpecifier::Path(path)) => path.clone(),
        Some(PathSpecifier::SafeRegex(regex)) => regex.regex.clone(),
        _ => "/*".to_owned(),
    }
}

/// A string match; `None` if empty.
pub(super) fn string_matcher(text: &StringMatch) -> Option<StringMatcher> {
    let pattern = match text.match_type.as_ref()? {
        MatchType::Exact(exact) => MatchPattern::Exact(exact.clone()),
        MatchType::Prefix(prefix) => MatchPattern::Prefix(prefix.clone()),
        MatchType::Regex(regex) => MatchPattern::SafeRegex(regex_matcher(regex)),
    };
    Some(StringMatcher { match_pattern: Some(pattern), ..StringMatcher::default() })
}

pub(super) fn regex_matcher(regex: &str) -> RegexMatcher {
    RegexMatcher { regex: regex.into(), ..RegexMatcher::default() }
}

fn path(uri: Option<&StringMatch>, semantics: Semantics) -> PathSpecifier {
    match uri.and_then(|uri| uri.match_type.as_ref()) {
        None => PathSpecifier::Prefix("/".into()),
        Some(MatchType::Exact(path)) => PathSpecifier::Path(path.clone()),
        Some(MatchType::Regex(regex)) => PathSpecifier::SafeRegex(regex_matcher(regex)),
        // Ingress and the Gateway API match whole path elements.
        Some(MatchType::Prefix(prefix)) if semantics != Semantics::VirtualService && prefix != "/" => {
            PathSpecifier::PathSeparatedPrefix(prefix.strip_suffix('/').unwrap_or(prefix).into())
        }
        Some(MatchType::Prefix(prefix)) => PathSpecifier::Prefix(prefix.clone()),
    }
}

/// Whether this is a presence match: empty, or the regex `*`, which is invalid otherwise.
fn is_presence(text: &StringMatch) -> bool {
    match &text.match_type {
        None => true,
        Some(MatchType::Regex(regex)) => regex == "*",
        Some(_) => false,
    }
}

fn header(name: &str, text: &StringMatch) -> HeaderMatcher {
    let specifier = if is_presence(text) {
        Some(HeaderMatchSpecifier::PresentMatch(true))
    } else {
        string_matcher(text).map(HeaderMatchSpecifier::StringMatch)
    };
    HeaderMatcher { name: name.into(), header_match_specifier: specifier, ..HeaderMatcher::default() }
}

fn query_parameter(name: &str, text: &StringMatch) -> QueryParameterMatcher {
    let specifier = if is_presence(text) {
        Some(QueryParameterMatchSpecifier::PresentMatch(true))
    } else {
        string_matcher(text).map(QueryParameterMatchSpecifier::StringMatch)
    };
    QueryParameterMatcher { name: name.into(), query_parameter_match_specifier: specifier }
}

/// A claim match; the claim may be a string or a list of strings.
fn claim(name: &str, text: &StringMatch) -> Option<MetadataMatcher> {
    let claims = claim_path(name)?;
    let keys = std::iter::once(JWT_PAYLOAD).chain(claims);
    let segment = |key: &str| PathSegment { segment: Some(path_segment::Segment::Key(key.into())) };
    // Claims have no presence match: an empty match is sent as it is, and Envoy rejects it.
    let text = string_matcher(text).unwrap_or_default();
    let value = ValueMatcher { match_pattern: Some(value_matcher::MatchPattern::StringMatch(text)) };
    let one_of = ListMatcher { match_pattern: Some(list_matcher::MatchPattern::OneOf(Box::new(value.clone()))) };
    let in_list = ValueMatcher { match_pattern: Some(value_matcher::MatchPattern::ListMatch(Box::new(one_of))) };
    let either = OrMatcher { value_matchers: vec![in_list, value] };
    Some(MetadataMatcher {
        filter: JWT_FILTER.into(),
        path: keys.map(segment).collect(),
        value: Some(ValueMatcher { match_pattern: Some(value_matcher::MatchPattern::OrMatch(either)) }),
        invert: false,
    })
}

/// The path of a nested claim, from `@request.auth.claims.group.id` or `@request.auth.claims[group][id]`.
fn claim_path(name: &str) -> Option<Vec<&str>> {
    let prefix = name.get(..CLAIMS.len()).filter(|p| p.eq_ignore_ascii_case(CLAIMS))?;
    let rest = &name[prefix.len()..];
    if let Some(dotted) = rest.strip_prefix('.').filter(|r| !r.is_empty()) {
        return Some(dotted.split('.').collect());
    }
    let bracketed = rest.strip_prefix('[')?.strip_suffix(']').filter(|r| !r.is_empty())?;
    Some(bracketed.split("][").collect())
}

#[cfg(test)]
mod tests {
    use super::{StringMatch, claim, claim_path};

    #[test]
    fn claims_are_named_with_dots_or_brackets() {
        assert_eq!(claim_path("@request.auth.claims.group.id"), Some(vec!["group", "id"]));
        assert_eq!(claim_path("@Request.Auth.Claims[group][a.b]"), Some(vec!["group", "a.b"]));
        for other in ["x-group", "@request.auth.claims", "@request.auth.claims.", "@request.auth.claims[]"] {
            assert_eq!(claim_path(other), None, "{other}");
        }
    }

    #[test]
    fn claim_without_a_value_is_a_string_match() {
        let matcher = claim("@request.auth.claims.group", &StringMatch::default()).expect("a claim");
        let written = format!("{:?}", matcher.value);
        assert_eq!(written.matches("StringMatch(").count(), 2, "{written}");
    }
}
