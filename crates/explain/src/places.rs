//! The field of a configuration object that a route was made from, so that callers can name its line. Envoy's metadata
//! names only the object, but routes keep the order of its rules, and their names and paths.

use api::envoy::config::route::v3::Route;
use api::envoy::config::route::v3::route_match::PathSpecifier;
use serde_json::Value;

/// What a route keeps of its rule.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteShape {
    name: String,
    /// How the path is matched, and with which text.
    path: (&'static str, String),
}

impl RouteShape {
    pub(crate) fn of(route: &Route) -> RouteShape {
        let path = match route.r#match.as_ref().and_then(|m| m.path_specifier.as_ref()) {
            Some(PathSpecifier::Prefix(text) | PathSpecifier::PathSeparatedPrefix(text)) => ("prefix", text.clone()),
            Some(PathSpecifier::Path(text)) => ("exact", text.clone()),
            Some(PathSpecifier::SafeRegex(regex)) => ("regex", regex.regex.clone()),
            _ => ("other", String::new()),
        };
        RouteShape { name: route.name.clone(), path }
    }

    /// Whether a match of a rule with this name can make the route. Routes are named RULE or RULE.MATCH.
    fn can_be_of(&self, rule: &Value, of_match: &Value) -> bool {
        let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
        let (rule_name, match_name) = (name(rule), name(of_match));
        let is_named = rule_name.is_empty()
            || self.name == rule_name
            || self.name.strip_prefix(&rule_name).is_some_and(|rest| rest.strip_prefix('.') == Some(&match_name));
        is_named && (self.path == path_of(of_match) || self.path.0 == "other")
    }
}

/// The path of a match of a VirtualService.
fn path_of(of_match: &Value) -> (&'static str, String) {
    let text = |kind: &str| of_match["uri"][kind].as_str().map(str::to_owned);
    let found = ["prefix", "exact", "regex"].into_iter().find_map(|kind| Some((kind, text(kind)?)));
    match found {
        // Upstream writes the regular expression for all paths as the prefix.
        Some(("regex", text)) if text == ".*" => ("prefix", "/".to_owned()),
        Some(found) => found,
        None => ("prefix", "/".to_owned()),
    }
}

/// The field of a VirtualService that the last of these routes was made from, such as `spec.http[1]`. `None` if the
/// routes do not fit the object: it may have changed since, or its routes were delegated.
pub fn rule_field(routes: &[RouteShape], object: &Value) -> Option<String> {
    let mut matches = matches_of(object["spec"]["http"].as_array()?).into_iter();
    let mut field = None;
    for route in routes {
        // Rules that make no route for this proxy are skipped.
        let (index, _, _) = matches.find(|(_, rule, of_match)| route.can_be_of(rule, of_match))?;
        field = Some(format!("spec.http[{index}]"));
    }
    field
}

/// Each rule with each of its matches.
fn matches_of(rules: &[Value]) -> Vec<(usize, &Value, &Value)> {
    let mut all = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        match rule["match"].as_array().filter(|list| !list.is_empty()) {
            Some(list) => all.extend(list.iter().map(|of_match| (index, rule, of_match))),
            None => all.push((index, rule, &Value::Null)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{RouteShape, rule_field};

    fn route(name: &str, kind: &'static str, path: &str) -> RouteShape {
        RouteShape { name: name.into(), path: (kind, path.into()) }
    }

    #[test]
    fn routes_are_aligned_with_rules_in_their_order() {
        let object = json!({"spec": {"http": [
            {"match": [{"uri": {"exact": "/a"}}, {"uri": {"prefix": "/b"}}]},
            {"name": "named", "match": [{"name": "one", "headers": {"x": {"exact": "1"}}}]},
            {"route": []},
        ]}});
        let all = [
            route("", "exact", "/a"),
            route("", "prefix", "/b"),
            route("named.one", "prefix", "/"),
            route("", "prefix", "/"),
        ];
        for (count, expected) in [(1, "spec.http[0]"), (2, "spec.http[0]"), (3, "spec.http[1]"), (4, "spec.http[2]")] {
            assert_eq!(rule_field(&all[..count], &object).as_deref(), Some(expected));
        }
        // A route that is skipped for this proxy.
        assert_eq!(rule_field(&all[1..2], &object).as_deref(), Some("spec.http[0]"));
        assert_eq!(rule_field(&[route("", "exact", "/gone")], &object), None);
    }
}
