//! Merges routes of a root VirtualService with the routes of its delegates, within a budget: a thousand routes that
//! delegate to a thousand routes would be a million.

use std::collections::BTreeMap;

use api::istio::networking::v1alpha3::string_match::MatchType;
use api::istio::networking::v1alpha3::{HttpMatchRequest, HttpRoute, StringMatch};
use prost::Message;

use crate::settings::Knobs;

/// Allowed comparisons of matches per allowed route. Most find a conflict and produce no route, but cost time on the one
/// thread that writes the snapshot.
const PAIRS_PER_ROUTE: usize = 20;
/// The budget of a namespace, in multiples of that of one VirtualService.
const NAMESPACE_FACTOR: usize = 4;

/// What merging may still produce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DelegateBudget {
    /// Matches, and routes without a match: Envoy has one route for each.
    routes: usize,
    /// Encoded size.
    bytes: usize,
    /// Comparisons of two matches.
    pairs: usize,
}

/// The budget is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BudgetExceeded;

impl DelegateBudget {
    /// The budget of one VirtualService.
    pub(super) fn of_object(knobs: &Knobs) -> DelegateBudget {
        let routes = knobs.delegated_routes as usize;
        let pairs = routes.saturating_mul(PAIRS_PER_ROUTE);
        DelegateBudget { routes, bytes: knobs.delegated_bytes as usize, pairs }
    }

    /// The budget of all VirtualServices of one namespace.
    pub(super) fn of_namespace(knobs: &Knobs) -> DelegateBudget {
        let DelegateBudget { routes, bytes, pairs } = DelegateBudget::of_object(knobs);
        let times = |count: usize| count.saturating_mul(NAMESPACE_FACTOR);
        DelegateBudget { routes: times(routes), bytes: times(bytes), pairs: times(pairs) }
    }

    /// Runs `make` and charges both budgets. If it fails, only its comparisons are charged.
    pub(super) fn spend<T>(
        &mut self,
        other: &mut DelegateBudget,
        make: impl FnOnce(&mut DelegateBudget) -> Result<T, BudgetExceeded>,
    ) -> Result<T, BudgetExceeded> {
        let before = DelegateBudget {
            routes: self.routes.min(other.routes),
            bytes: self.bytes.min(other.bytes),
            pairs: self.pairs.min(other.pairs),
        };
        let mut left = before;
        let made = make(&mut left);
        for budget in [self, other] {
            budget.pairs -= before.pairs - left.pairs;
            if made.is_ok() {
                budget.routes -= before.routes - left.routes;
                budget.bytes -= before.bytes - left.bytes;
            }
        }
        made
    }

    fn compare(&mut self) -> Result<(), BudgetExceeded> {
        self.pairs = self.pairs.checked_sub(1).ok_or(BudgetExceeded)?;
        Ok(())
    }

    fn condition(&mut self, condition: &HttpMatchRequest) -> Result<(), BudgetExceeded> {
        self.routes = self.routes.checked_sub(1).ok_or(BudgetExceeded)?;
        self.bytes(condition.encoded_len())
    }

    fn bytes(&mut self, count: usize) -> Result<(), BudgetExceeded> {
        self.bytes = self.bytes.checked_sub(count).ok_or(BudgetExceeded)?;
        Ok(())
    }
}

/// The delegate's routes with the root's matches and settings added. Routes that can never match together with the
/// root's are left out.
pub(super) fn merged(
    root: &HttpRoute,
    delegate: &[HttpRoute],
    budget: &mut DelegateBudget,
) -> Result<Vec<HttpRoute>, BudgetExceeded> {
    let mut out = Vec::new();
    for route in delegate {
        if let Some(conditions) = merged_matches(&root.r#match, &route.r#match, budget)? {
            let settings = merged_settings(root, route);
            budget.bytes(settings.encoded_len())?;
            out.push(HttpRoute { r#match: conditions, ..settings });
        }
    }
    Ok(out)
}

/// The merged route without its matches.
fn merged_settings(root: &HttpRoute, delegate: &HttpRoute) -> HttpRoute {
    let mut route = HttpRoute { r#match: Vec::new(), ..delegate.clone() };
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
    route
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

/// All pairs of matches that can match together. `None` if a match of the delegate fits none of the root's.
fn merged_matches(
    root: &[HttpMatchRequest],
    delegate: &[HttpMatchRequest],
    budget: &mut DelegateBudget,
) -> Result<Option<Vec<HttpMatchRequest>>, BudgetExceeded> {
    budget.compare()?;
    if root.is_empty() || delegate.is_empty() {
        let all = if root.is_empty() { delegate } else { root };
        if all.is_empty() {
            budget.condition(&HttpMatchRequest::default())?;
        }
        all.iter().try_for_each(|condition| budget.condition(condition))?;
        return Ok(Some(all.to_vec()));
    }
    let mut out = Vec::new();
    for own in delegate {
        let before = out.len();
        for root in root {
            budget.compare()?;
            if !conflict(root, own) {
                let both = merged_match(root, own);
                budget.condition(&both)?;
                out.push(both);
            }
        }
        if out.len() == before {
            return Ok(None);
        }
    }
    Ok(Some(out))
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

/// Whether the delegate's match is not certainly narrower than the root's. Regular expressions cannot be compared, so
/// one together with any other match is a conflict.
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
    use super::{BudgetExceeded, DelegateBudget, HttpMatchRequest, HttpRoute, Knobs, MatchType, StringMatch};

    fn merged(root: &HttpRoute, delegate: &[HttpRoute]) -> Vec<HttpRoute> {
        super::merged(root, delegate, &mut DelegateBudget::of_object(&Knobs::default())).unwrap()
    }

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
    fn narrower_match_of_the_delegate_is_kept() {
        let root = route("root", &[prefix("/a")]);
        let out = merged(&root, &[route("own", &[MatchType::Exact("/a/b".into())])]);
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].name, "root-own");
        assert_eq!(out[0].r#match, route("", &[MatchType::Exact("/a/b".into())]).r#match);
    }

    #[test]
    fn wider_match_of_the_delegate_drops_its_route() {
        let root = route("root", &[prefix("/a/b")]);
        assert!(merged(&root, &[route("own", &[prefix("/a")])]).is_empty());
        assert!(merged(&root, &[route("own", &[MatchType::Regex(".*".into())])]).is_empty());
    }

    #[test]
    fn delegate_without_matches_gets_those_of_the_root() {
        let root = route("root", &[prefix("/a"), prefix("/b")]);
        assert_eq!(merged(&root, &[route("", &[])])[0], root);
    }
    #[test]
    fn merging_charges_both_budgets() {
        let knobs = Knobs { delegated_routes: 10, ..Knobs::default() };
        let (mut own, mut shared) = (DelegateBudget::of_object(&knobs), DelegateBudget::of_namespace(&knobs));
        let (root, own_routes) = (route("", &[prefix("/a"), prefix("/b")]), vec![route("", &[]); 4]);
        let mut merge =
            |own: &mut DelegateBudget| own.spend(&mut shared, |left| super::merged(&root, &own_routes, left));
        assert_eq!(merge(&mut own).map(|routes| routes.len()), Ok(4));
        assert_eq!(merge(&mut own), Err(BudgetExceeded), "eight conditions leave no room for eight more");
        for _ in 0..4 {
            assert!(merge(&mut DelegateBudget::of_object(&knobs)).is_ok());
        }
        assert_eq!(
            merge(&mut DelegateBudget::of_object(&knobs)),
            Err(BudgetExceeded),
            "forty is all that the namespace may have"
        );
    }

    #[test]
    fn settings_of_the_root_count_for_each_route() {
        let knobs = Knobs { delegated_bytes: 100_000, ..Knobs::default() };
        let root = HttpRoute { name: "x".repeat(30_000), ..HttpRoute::default() };
        let outcome = |count: usize| {
            super::merged(&root, &vec![route("", &[]); count], &mut DelegateBudget::of_object(&knobs))
                .map(|all| all.len())
        };
        assert_eq!([outcome(3), outcome(4)], [Ok(3), Err(BudgetExceeded)]);
    }

    #[test]
    fn comparisons_are_bounded_even_without_result() {
        let knobs = Knobs { delegated_routes: 10, ..Knobs::default() };
        let mut budget = DelegateBudget::of_object(&knobs);
        let roots = route("", &vec![prefix("/a"); 150]);
        let made = super::merged(&roots, &[route("", &[prefix("/b")])], &mut budget);
        assert_eq!(made, Ok(Vec::new()));
        assert_eq!(super::merged(&roots, &[route("", &[prefix("/b")])], &mut budget), Err(BudgetExceeded));
    }
}
