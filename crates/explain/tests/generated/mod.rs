//! Requests made for route tables, so that most of them match a route and some just miss it.

use api::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use api::envoy::config::route::v3::query_parameter_matcher::QueryParameterMatchSpecifier;
use api::envoy::config::route::v3::route_match::PathSpecifier;
use api::envoy::config::route::v3::{RouteConfiguration, RouteMatch};
use api::envoy::r#type::matcher::v3::StringMatcher;
use api::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use explain::Request;
use fastrand::Rng;

/// A text that the matcher accepts, if that is easy to say.
fn accepted(matcher: &StringMatcher) -> Option<String> {
    match matcher.match_pattern.as_ref()? {
        MatchPattern::Exact(text) => Some(text.clone()),
        MatchPattern::Prefix(text) => Some(format!("{text}x")),
        MatchPattern::Suffix(text) => Some(format!("x{text}")),
        MatchPattern::Contains(text) => Some(format!("x{text}x")),
        MatchPattern::SafeRegex(_) | MatchPattern::Custom(_) => Some("7".to_owned()),
    }
}

fn path_for(matcher: &RouteMatch, random: &mut Rng) -> String {
    match &matcher.path_specifier {
        Some(PathSpecifier::Prefix(prefix)) if random.bool() => format!("{prefix}x/y"),
        Some(PathSpecifier::PathSeparatedPrefix(prefix)) if random.bool() => format!("{prefix}/y"),
        Some(PathSpecifier::PathSeparatedPrefix(prefix)) if random.bool() => format!("{prefix}y"),
        Some(PathSpecifier::Prefix(path) | PathSpecifier::Path(path) | PathSpecifier::PathSeparatedPrefix(path)) => {
            path.clone()
        }
        Some(PathSpecifier::SafeRegex(_)) => "/users/7/basket".to_owned(),
        _ => "/other".to_owned(),
    }
}

/// A request made for one route of a table.
pub(crate) fn request(table: &RouteConfiguration, random: &mut Rng) -> Option<Request> {
    let host = random.choice(&table.virtual_hosts)?;
    let domain = random.choice(&host.domains)?.replace('*', "w");
    let matcher = random.choice(&host.routes)?.r#match.clone()?;
    let mut path = path_for(&matcher, random);
    for parameter in &matcher.query_parameters {
        let value = match &parameter.query_parameter_match_specifier {
            Some(QueryParameterMatchSpecifier::StringMatch(text)) => accepted(text)?,
            _ => "1".to_owned(),
        };
        if random.u8(..) > 50 {
            path += &format!("{}{}={value}", if path.contains('?') { '&' } else { '?' }, parameter.name);
        }
    }
    let mut request = Request::new("GET", &format!("http://{domain}{path}")).ok()?;
    for header in &matcher.headers {
        let value = match header.header_match_specifier.as_ref()? {
            HeaderMatchSpecifier::StringMatch(text) => accepted(text)?,
            HeaderMatchSpecifier::ExactMatch(text) => text.clone(),
            _ => "1".to_owned(),
        };
        match &*header.name {
            // Envoy rejects unknown methods before it looks at routes.
            ":method" if ["GET", "POST", "PUT", "DELETE"].contains(&&*value) => request.method = value,
            ":authority" => request.authority = value,
            name if name.starts_with(':') => {}
            name if random.u8(..) > 50 => request.header(&format!("{name}: {value}")).ok()?,
            _ => {}
        }
    }
    let is_sendable = request.method != "CONNECT" && !request.authority.contains(['[', ' ']);
    is_sendable.then_some(request)
}
