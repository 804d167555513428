//! Requests that show what a change of routes does: one for each route of both versions, made to match it. Those that go
//! another way afterwards are reported.

use std::collections::BTreeSet;

use api::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use api::envoy::config::route::v3::query_parameter_matcher::QueryParameterMatchSpecifier;
use api::envoy::config::route::v3::route_match::PathSpecifier;
use api::envoy::config::route::v3::{RouteConfiguration, RouteMatch};
use api::envoy::r#type::matcher::v3::StringMatcher;
use api::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use serde::Serialize;

use crate::config::ProxyConfig;
use crate::explain_routes;
use crate::explanation::RequestOutcome;
use crate::request::Request;

/// A request that goes another way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ChangedWay {
    /// Method, URL and headers.
    pub request: String,
    pub before: String,
    pub after: String,
}

/// Requests that go another way with the second configuration; at most `most`.
pub fn changed_ways(before: &ProxyConfig, after: &ProxyConfig, most: usize) -> Vec<ChangedWay> {
    let none = RouteConfiguration::default();
    let mut found = BTreeSet::new();
    let names: BTreeSet<&String> = before.routes.keys().chain(after.routes.keys()).collect();
    for name in names {
        let (old, new) = (before.routes.get(name).unwrap_or(&none), after.routes.get(name).unwrap_or(&none));
        if old == new {
            continue;
        }
        for request in requests(old).into_iter().chain(requests(new)) {
            let [was, is] = [(before, old), (after, new)]
                .map(|(config, table)| way(&explain_routes(config, table, &request).outcome));
            if was != is {
                found.insert(ChangedWay { request: shown(&request), before: was, after: is });
            }
            if found.len() >= most {
                return found.into_iter().collect();
            }
        }
    }
    found.into_iter().collect()
}

fn shown(request: &Request) -> String {
    let headers: String = request.headers.iter().map(|(name, value)| format!(" -H '{name}: {value}'")).collect();
    format!("{} {}://{}{}{headers}", request.method, request.scheme, request.authority, request.path)
}

/// Where a request goes, without endpoints, which change all the time.
fn way(outcome: &RequestOutcome) -> String {
    match outcome {
        RequestOutcome::Forwarded(clusters) => {
            let one = |cluster: &crate::explanation::ClusterStep| format!("{} % {}", cluster.percent, cluster.name);
            clusters.iter().map(one).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string().trim().to_owned(),
    }
}

/// A request for each route of a table.
fn requests(table: &RouteConfiguration) -> Vec<Request> {
    let mut found = Vec::new();
    for host in &table.virtual_hosts {
        let Some(domain) = host.domains.first() else { continue };
        let domain = domain.replace('*', "any");
        found.extend(host.routes.iter().filter_map(|route| request(&domain, route.r#match.as_ref()?)));
        // One that no special route is made for.
        found.extend(Request::new("GET", &format!("http://{domain}/")));
    }
    found
}

fn request(domain: &str, matcher: &RouteMatch) -> Option<Request> {
    let mut path = match &matcher.path_specifier {
        Some(PathSpecifier::Prefix(path) | PathSpecifier::Path(path) | PathSpecifier::PathSeparatedPrefix(path)) => {
            path.clone()
        }
        Some(PathSpecifier::SafeRegex(_)) => "/7".to_owned(),
        _ => "/".to_owned(),
    };
    for parameter in &matcher.query_parameters {
        let value = match &parameter.query_parameter_match_specifier {
            Some(QueryParameterMatchSpecifier::StringMatch(text)) => accepted(text)?,
            _ => "1".to_owned(),
        };
        let separator = if path.contains('?') { '&' } else { '?' };
        path += &format!("{separator}{}={value}", parameter.name);
    }
    let mut request = Request::new("GET", &format!("http://{domain}{path}")).ok()?;
    for header in matcher.headers.iter().filter(|header| !header.invert_match) {
        let value = match header.header_match_specifier.as_ref()? {
            HeaderMatchSpecifier::StringMatch(text) => accepted(text)?,
            HeaderMatchSpecifier::ExactMatch(text) => text.clone(),
            HeaderMatchSpecifier::PresentMatch(false) => continue,
            _ => "1".to_owned(),
        };
        match &*header.name {
            ":method" => request.method = value,
            ":authority" => request.authority = value,
            name if name.starts_with(':') => {}
            name => request.header(&format!("{name}: {value}")).ok()?,
        }
    }
    Some(request)
}

/// A text that a matcher accepts, if that is easy to say.
fn accepted(matcher: &StringMatcher) -> Option<String> {
    match matcher.match_pattern.as_ref()? {
        MatchPattern::Exact(text) | MatchPattern::Prefix(text) | MatchPattern::Suffix(text) => Some(text.clone()),
        MatchPattern::Contains(text) => Some(text.clone()),
        MatchPattern::SafeRegex(_) | MatchPattern::Custom(_) => Some("7".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{ProxyConfig, changed_ways};

    fn config(weights: &str) -> ProxyConfig {
        let text = format!(
            r#"[{{"@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration", "name": "80", "virtualHosts": [
            {{"name": "cart", "domains": ["cart", "cart.shop"], "routes": [
            {{"match": {{"prefix": "/", "headers": [{{"name": "x-user", "stringMatch": {{"exact": "ann"}}}}]}}, "route": {{"cluster": "v2"}}}},
            {{"match": {{"prefix": "/"}}, "route": {{"weightedClusters": {{"clusters": [{weights}]}}}}}}]}},
            {{"name": "pay", "domains": ["pay"], "routes": [{{"match": {{"prefix": "/"}}, "route": {{"cluster": "pay"}}}}]}}]}}]"#
        );
        ProxyConfig::from_dump(&text).unwrap()
    }

    #[test]
    fn only_requests_that_change_their_way_are_listed() {
        let before = config(r#"{"name": "v1", "weight": 100}"#);
        let after = config(r#"{"name": "v1", "weight": 90}, {"name": "v2", "weight": 10}"#);
        let found = changed_ways(&before, &after, 10);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].request, "GET http://cart/");
        assert_eq!((&*found[0].before, &*found[0].after), ("100 % v1", "90 % v1, 10 % v2"));
        assert!(changed_ways(&after, &after, 10).is_empty());
    }
}
