//! How a route of a root VirtualService is merged with the routes of the VirtualService it delegates to.

use std::collections::BTreeMap;

use api::istio::networking::v1alpha3::string_match::MatchType;
use api::istio::networking::v1alpha3::{HttpMatchRequest, HttpRoute, StringMatch};

/// The delegate's routes with the root's conditions and settings added. Routes that can never match under
/// the root's conditions are left out.
pub(super) fn merged(root: &HttpRoute, delegate: &[HttpRoute]) -> Vec<HttpRoute> {
    delegate.iter().filter_map(|route| merged_route(root, route)).collect()
}

fn merged_route(root: &HttpRoute, delegate: &HttpRoute) -> Option<HttpRoute> {
    let mut route = delegate.clone();
    route.r#match = merged_matches(&root.r#match, &delegate.r#match)?;
    route.name = joined(&root.name, &delegate.name);
    inherit(&mut route.rewrite, &root.rewrite);
    inherit(&mut route.direct_response, &root.direct_response);
    inherit(&mut route.timeout, &root.timeout);
    inherit(&mut route.retries, &root.retries);
    inherit(&mut route.fault, &root.fault);
    inherit(&mut route.mirror, &root.mirror);
    inherit(&mut route.mirror_percent, &root.mirror_percent);
    inherit(&mut route.mirror_percentage, &root.mirror_percentage);
    inherit(&mut route.cors_policy, &root.cors_policy);
    inherit(&mut route.headers, &root.headers);
    if route.mirrors.is_empty() {
        route.mirrors.clone_from(&root.mirrors);
    }
    Some(route)
}

fn inherit<T: Clone>(own: &mut Option<T>, root: &Option<T>) {
    if own.is_none() {
        own.clone_from(root);
    }
}

fn joined(root: &str, own: &str) -> String {
    match (root.is_empty(), own.is_empty()) {
        (_, true) => root.to_owned(),
        (true, false) => own.to_owned(),
        (false, false) => format!("{root}-{own}"),
    }
}

/// Every pair of conditions that can hold together. `None` if some condition of the delegate fits none of
/// the root's.
fn merged_matches(root: &[HttpMatchRequest], delegate: &[HttpMatchRequest]) -> Option<Vec<HttpMatchRequest>> {
    if root.is_empty() {
        return Some(delegate.to_vec());
    }
    if delegate.is_empty() {
        return Some(root.to_vec());
    }
    let mut out = Vec::new();
    for own in delegate {
        let before = out.len();
        out.extend(root.iter().filter(|r| !conflict(r, own)).map(|r| merged_match(r, own)));
        if out.len() == before {
            return None;
        }
    }
    Some(out)
}

fn merged_match(root: &HttpMatchRequest, own: &HttpMatchRequest) -> HttpMatchRequest {
    let mut out = own.clone();
    out.name = joined(&root.name, &own.name);
    inherit(&mut out.uri, &root.uri);
    inherit(&mut out.scheme, &root.scheme);
    inherit(&mut out.method, &root.method);
    inherit(&mut out.authority, &root.authority);
    inherit_entries(&mut out.headers, &root.headers);
    inherit_entries(&mut out.without_headers, &root.without_headers);
    inherit_entries(&mut out.query_params, &root.query_params);
    inherit_entries(&mut out.source_labels, &root.source_labels);
    if out.port == 0 {
        out.port = root.port;
    }
    if out.source_namespace.is_empty() {
        out.source_namespace.clone_from(&root.source_namespace);
    }
    if out.gateways.is_empty() {
        out.gateways.clone_from(&root.gateways);
    }
    if out.stat_prefix.is_empty() {
        out.stat_prefix.clone_from(&root.stat_prefix);
    }
    out
}

fn inherit_entries<V: Clone>(own: &mut BTreeMap<String, V>, root: &BTreeMap<String, V>) {
    for (key, value) in root {
        own.entry(key.clone()).or_insert_with(|| value.clone());
    }
}

fn conflict(root: &HttpMatchRequest, own: &HttpMatchRequest) -> bool {
    let texts = [
        (&root.uri, &own.uri),
        (&root.scheme, &own.scheme),
        (&root.method, &own.method),
        (&root.authority, &own.authority),
    ];
    let maps = [
        (&root.headers, &own.headers),
        (&root.without_headers, &own.without_headers),
        (&root.query_params, &own.query_params),
    ];
    texts.into_iter().any(|(root, own)| text_conflict(root.as_ref(), own.as_ref()))
        || maps.into_iter().any(|(root, own)| own.iter().any(|(key, value)| text_conflict(root.get(key), Some(value))))
        || root.ignore_uri_case != own.ignore_uri_case
        || (root.port > 0 && own.port > 0 && root.port != own.port)
        || (!root.source_namespace.is_empty() && own.source_namespace != root.source_namespace)
        || own.source_labels.iter().any(|(key, value)| root.source_labels.get(key).is_some_and(|v| v != value))
        || gateway_conflict(&root.gateways, &own.gateways)
}

fn gateway_conflict(root: &[String], own: &[String]) -> bool {
    !root.is_empty() && (own.len() > root.len() || own.iter().any(|gateway| !root.contains(gateway)))
}

/// Whether the delegate's condition is not certainly narrower than the root's. Regular expressions cannot
/// be compared, so one of them beside any other condition is a conflict.
fn text_conflict(root: Option<&StringMatch>, own: Option<&StringMatch>) -> bool {
    let (Some(root), Some(own)) = (root, own) else { return false };
    match (root.match_type.as_ref(), own.match_type.as_ref()) {
        (Some(MatchType::Exact(root)), Some(MatchType::Exact(own))) if !root.is_empty() => root != own,
        (Some(MatchType::Prefix(root)), Some(MatchType::Prefix(own) | MatchType::Exact(own)))
            if !root.is_empty() && !own.is_empty() =>
        {
            !own.starts_with(root.as_str())
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::{HttpMatchRequest, HttpRoute, MatchType, StringMatch, merged};

    fn route(name: &str, uris: &[MatchType]) -> HttpRoute {
        let condition = |uri: &MatchType| HttpMatchRequest {
            uri: Some(StringMatch { match_type: Some(uri.clone()) }),
            ..HttpMatchRequest::default()
        };
        HttpRoute { name: name.into(), r#match: uris.iter().map(condition).collect(), ..HttpRoute::default() }
    }

    fn prefix(text: &str) -> MatchType {
        MatchType::Prefix(text.into())
    }

    #[test]
    fn narrower_condition_of_the_delegate_is_kept() {
        let root = route("root", &[prefix("/a")]);
        let out = merged(&root, &[route("own", &[MatchType::Exact("/a/b".into())])]);
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].name, "root-own");
        assert_eq!(out[0].r#match, route("", &[MatchType::Exact("/a/b".into())]).r#match);
    }

    #[test]
    fn wider_condition_of_the_delegate_drops_its_route() {
        let root = route("root", &[prefix("/a/b")]);
        assert!(merged(&root, &[route("own", &[prefix("/a")])]).is_empty());
        assert!(merged(&root, &[route("own", &[MatchType::Regex(".*".into())])]).is_empty());
    }

    #[test]
    fn delegate_without_conditions_takes_the_roots() {
        let root = route("root", &[prefix("/a"), prefix("/b")]);
        assert_eq!(merged(&root, &[route("", &[])])[0], root);
    }
}
