//! Warnings for unreachable rules of a VirtualService.

use std::collections::HashMap;

use api::istio::networking::v1alpha3::string_match::MatchType;
use api::istio::networking::v1alpha3::{HttpMatchRequest, StringMatch, VirtualService};
use prost::Message;

use super::report::Report;
use crate::config::problem::ProblemCode;

/// Maximum number of compared prefix matches; the work is quadratic.
const MOST_PREFIXES: usize = 1000;

pub(super) fn check(service: &VirtualService, report: &mut Report) {
    let http: Vec<RouteMatches> = service
        .http
        .iter()
        .enumerate()
        .map(|(at, route)| RouteMatches::new(&route.name, at, &route.r#match, http_key))
        .collect();
    never_used(&http, report);
    overlapping_prefixes(service, report);
    let tcp: Vec<RouteMatches> =
        service.tcp.iter().enumerate().map(|(at, route)| RouteMatches::new("", at, &route.r#match, key)).collect();
    never_used(&tcp, report);
    let tls: Vec<RouteMatches> =
        service.tls.iter().enumerate().map(|(at, route)| RouteMatches::new("", at, &route.r#match, key)).collect();
    never_used(&tls, report);
}

/// A route of any protocol: its name, and the names and comparable forms of its matches.
struct RouteMatches {
    name: String,
    matches: Vec<(String, Vec<u8>)>,
}

impl RouteMatches {
    fn new<M>(name: &str, at: usize, matches: &[M], key: impl Fn(&M) -> (String, Vec<u8>)) -> RouteMatches {
        let matches = matches.iter().enumerate().map(|(at, one)| {
            let (name, key) = key(one);
            (named(&name, at), key)
        });
        RouteMatches { name: named(name, at), matches: matches.collect() }
    }
}

fn named(name: &str, at: usize) -> String {
    if name.is_empty() { format!("#{at}") } else { format!("{name:?}") }
}

fn key<M: Message>(one: &M) -> (String, Vec<u8>) {
    (String::new(), one.encode_to_vec())
}

/// The match without its name, which does not affect matching.
fn http_key(one: &HttpMatchRequest) -> (String, Vec<u8>) {
    let mut unnamed = one.clone();
    let name = std::mem::take(&mut unnamed.name);
    (name, unnamed.encode_to_vec())
}

fn never_used(rules: &[RouteMatches], report: &mut Report) {
    let mut seen: HashMap<&[u8], &str> = HashMap::new();
    let mut catches_all = false;
    for rule in rules {
        let name = &rule.name;
        if rule.matches.is_empty() {
            if catches_all {
                not_used(name, "only the last rule can have no matches", report);
            }
            catches_all = true;
            continue;
        }
        if catches_all {
            not_used(name, "route without matches defined before", report);
            continue;
        }
        let mut duplicates = 0;
        for (match_name, key) in &rule.matches {
            if let Some(earlier) = seen.get(key.as_slice()) {
                duplicates += 1;
                ineffective(name, match_name, earlier, report);
            } else {
                seen.insert(key, name);
            }
        }
        if duplicates == rule.matches.len() {
            not_used(name, "all matches used by prior rules", report);
        }
    }
}

fn not_used(rule: &str, reason: &str, report: &mut Report) {
    report.warn_as(ProblemCode::UnreachableRule, format_args!("virtualService rule {rule} not used ({reason})"));
}

fn ineffective(rule: &str, one: &str, earlier: &str, report: &mut Report) {
    let message =
        format!("virtualService rule {rule} match {one} is not used (duplicate/overlapping match in rule {earlier})");
    report.warn_as(ProblemCode::IneffectiveMatch, message);
}

/// A match by URI prefix.
struct PrefixMatch<'a> {
    rule: String,
    name: String,
    prefix: &'a str,
    of: &'a HttpMatchRequest,
}

/// Warns if an earlier prefix covers a later one and its other conditions are not narrower.
fn overlapping_prefixes(service: &VirtualService, report: &mut Report) {
    let mut prefixes: Vec<PrefixMatch<'_>> = Vec::new();
    for (at, route) in service.http.iter().enumerate() {
        if route.r#match.is_empty() {
            break;
        }
        for (index, one) in route.r#match.iter().enumerate() {
            let uri = one.uri.as_ref().and_then(|uri| uri.match_type.as_ref());
            let Some(MatchType::Prefix(prefix)) = uri.filter(|_| prefixes.len() < MOST_PREFIXES) else { continue };
            if !prefix.is_empty() {
                prefixes.push(PrefixMatch {
                    rule: named(&route.name, at),
                    name: named(&one.name, index),
                    prefix,
                    of: one,
                });
            }
        }
    }
    for (at, earlier) in prefixes.iter().enumerate() {
        for later in prefixes[at + 1..].iter().filter(|later| later.prefix != earlier.prefix && earlier.covers(later)) {
            let name = format!("{} of prefix {}", later.name, later.prefix);
            let by = format!("{} of prefix {} on {}", earlier.name, earlier.prefix, earlier.rule);
            ineffective(&later.rule, &name, &by, report);
        }
    }
}

impl PrefixMatch<'_> {
    fn covers(&self, later: &PrefixMatch<'_>) -> bool {
        let (a, b) = (self.of, later.of);
        let method = |one: &HttpMatchRequest| match text(one.method.as_ref()) {
            given if given.is_empty() => "exact:GET".to_owned(),
            given => given,
        };
        later.prefix.starts_with(self.prefix)
            && a.port == b.port
            && method(a).starts_with(&method(b))
            && text(a.authority.as_ref()).starts_with(&text(b.authority.as_ref()))
            && all_start_with(&a.headers, &b.headers)
            && all_start_with(&a.query_params, &b.query_params)
            && all_start_with(&a.without_headers, &b.without_headers)
    }
}

fn all_start_with(
    a: &std::collections::BTreeMap<String, StringMatch>,
    b: &std::collections::BTreeMap<String, StringMatch>,
) -> bool {
    a.len() == b.len()
        && a.iter()
            .all(|(key, value)| b.get(key).is_some_and(|other| text(Some(value)).starts_with(&text(Some(other)))))
}

/// Comparable form of a match; regular expressions are not compared.
fn text(value: Option<&StringMatch>) -> String {
    match value.and_then(|value| value.match_type.as_ref()) {
        Some(MatchType::Exact(text)) if !text.is_empty() => format!("exact:{text}"),
        Some(MatchType::Prefix(text)) if !text.is_empty() => format!("prefix:{text}"),
        _ => String::new(),
    }
}
