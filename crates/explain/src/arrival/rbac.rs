//! AuthorizationPolicies: evaluates RBAC filters for one request, with three truth values.

use api::envoy::config::rbac::v3::rbac::Action;
use api::envoy::config::rbac::v3::{Permission, Policy, Principal, Rbac, permission, principal};
use api::envoy::config::route::v3::HeaderMatcher;
use api::envoy::r#type::matcher::v3::metadata_matcher::path_segment::Segment;
use api::envoy::r#type::matcher::v3::value_matcher::MatchPattern;
use api::envoy::r#type::matcher::v3::{MetadataMatcher, PathMatcher, ValueMatcher, list_matcher, path_matcher};
use serde_json::Value;

use super::truth::Truth;
use super::{Arriving, MatchedRule};
use crate::listener::contains;
use crate::matcher::{header_mismatch, is_match};

const JWT_FILTER: &str = "envoy.filters.http.jwt_authn";
const JWT_PAYLOAD: &str = "payload";

/// The rules that match, and whether any does.
pub(super) struct RulesMatch {
    pub(super) truth: Truth,
    /// Rules that match or, if the truth is unknown, might.
    pub(super) rules: Vec<MatchedRule>,
}

/// Matches a request with the rules of a filter.
pub(super) fn matching(rbac: &Rbac, arriving: &Arriving<'_>) -> RulesMatch {
    let found: Vec<(Truth, MatchedRule)> =
        rbac.policies.iter().map(|(name, policy)| (of_policy(policy, arriving), MatchedRule::of(name))).collect();
    let truth = Truth::any(found.iter().map(|(truth, _)| *truth));
    let rules = found.into_iter().filter(|(of, _)| truth != Truth::No && *of == truth).map(|(_, rule)| rule).collect();
    RulesMatch { truth, rules }
}

/// The action of rules.
pub(super) fn action(rbac: &Rbac) -> Action {
    Action::try_from(rbac.action).unwrap_or_default()
}

fn of_policy(policy: &Policy, arriving: &Arriving<'_>) -> Truth {
    let is_plain = policy.condition.is_none() && policy.checked_condition.is_none();
    let permissions = Truth::any(policy.permissions.iter().map(|one| permitted(one, arriving)));
    let principals = Truth::any(policy.principals.iter().map(|one| is_principal(one, arriving)));
    Truth::all([permissions, principals, if is_plain { Truth::Yes } else { Truth::Unknown }])
}

fn permitted(permission: &Permission, arriving: &Arriving<'_>) -> Truth {
    use permission::Rule;
    match &permission.rule {
        Some(Rule::AndRules(set)) => Truth::all(set.rules.iter().map(|rule| permitted(rule, arriving))),
        Some(Rule::OrRules(set)) => Truth::any(set.rules.iter().map(|rule| permitted(rule, arriving))),
        Some(Rule::NotRule(rule)) => !permitted(rule, arriving),
        Some(Rule::Any(any)) => (*any).into(),
        Some(Rule::Header(matcher)) => header(matcher, arriving),
        Some(Rule::UrlPath(matcher)) => path(matcher, arriving),
        Some(Rule::DestinationIp(range)) => contains(range, arriving.address.ip()).into(),
        Some(Rule::DestinationPort(port)) => (*port == u32::from(arriving.address.port())).into(),
        Some(Rule::DestinationPortRange(range)) => {
            (range.start..range.end).contains(&i32::from(arriving.address.port())).into()
        }
        Some(Rule::RequestedServerName(matcher)) => is_match(matcher, &arriving.transport.server_name).into(),
        Some(Rule::Metadata(matcher)) => metadata(matcher, arriving),
        _ => Truth::Unknown,
    }
}

fn is_principal(principal: &Principal, arriving: &Arriving<'_>) -> Truth {
    use principal::Identifier;
    match &principal.identifier {
        Some(Identifier::AndIds(set)) => Truth::all(set.ids.iter().map(|one| is_principal(one, arriving))),
        Some(Identifier::OrIds(set)) => Truth::any(set.ids.iter().map(|one| is_principal(one, arriving))),
        Some(Identifier::NotId(one)) => !is_principal(one, arriving),
        Some(Identifier::Any(any)) => (*any).into(),
        Some(Identifier::Authenticated(of)) => match (&of.principal_name, arriving.identity()) {
            _ if !arriving.transport.has_certificate => Truth::No,
            (None, _) => Truth::Yes,
            (Some(matcher), Some(identity)) => is_match(matcher, identity).into(),
            (Some(_), None) => Truth::Unknown,
        },
        Some(Identifier::DirectRemoteIp(range)) => from_range(range, arriving),
        Some(Identifier::RemoteIp(range) | Identifier::SourceIp(range)) => match &arriving.request {
            Some(request) if request.value("x-forwarded-for").is_some() => Truth::Unknown,
            _ => from_range(range, arriving),
        },
        Some(Identifier::Header(matcher)) => header(matcher, arriving),
        Some(Identifier::UrlPath(matcher)) => path(matcher, arriving),
        Some(Identifier::Metadata(matcher)) => metadata(matcher, arriving),
        _ => Truth::Unknown,
    }
}

fn from_range(range: &api::envoy::config::core::v3::CidrRange, arriving: &Arriving<'_>) -> Truth {
    match arriving.source.addresses.as_slice() {
        [] => Truth::Unknown,
        known if known.iter().all(|address| contains(range, *address)) => Truth::Yes,
        known if known.iter().any(|address| contains(range, *address)) => Truth::Unknown,
        _ => Truth::No,
    }
}

fn header(matcher: &HeaderMatcher, arriving: &Arriving<'_>) -> Truth {
    let value = arriving.request.as_ref().and_then(|request| request.value(&matcher.name));
    header_mismatch(matcher, value.as_deref()).is_none().into()
}

fn path(matcher: &PathMatcher, arriving: &Arriving<'_>) -> Truth {
    let (Some(path_matcher::Rule::Path(text)), Some(request)) = (&matcher.rule, &arriving.request) else {
        return Truth::No;
    };
    is_match(text, request.plain_path()).into()
}

/// Metadata of a token; that of other filters is unknown.
fn metadata(matcher: &MetadataMatcher, arriving: &Arriving<'_>) -> Truth {
    let mut keys = matcher.path.iter().map(|segment| match &segment.segment {
        Some(Segment::Key(key)) => key.as_str(),
        None => "",
    });
    if matcher.filter != JWT_FILTER || keys.next() != Some(JWT_PAYLOAD) {
        return Truth::Unknown;
    }
    let claims = arriving.claims.as_ref();
    let value = keys.try_fold(claims, |value, key| Some(value?.get(key))).flatten();
    let matches = matcher.value.as_ref().is_some_and(|wanted| value_matches(wanted, value));
    (matches != matcher.invert).into()
}

fn value_matches(matcher: &ValueMatcher, value: Option<&Value>) -> bool {
    match &matcher.match_pattern {
        Some(MatchPattern::NullMatch(_)) => value == Some(&Value::Null),
        Some(MatchPattern::StringMatch(text)) => value.and_then(Value::as_str).is_some_and(|of| is_match(text, of)),
        Some(MatchPattern::BoolMatch(wanted)) => value == Some(&Value::Bool(*wanted)),
        Some(MatchPattern::PresentMatch(wanted)) => value.is_some() == *wanted,
        Some(MatchPattern::OrMatch(any)) => any.value_matchers.iter().any(|matcher| value_matches(matcher, value)),
        Some(MatchPattern::ListMatch(list)) => {
            let Some(list_matcher::MatchPattern::OneOf(one)) = &list.match_pattern else { return false };
            value.and_then(Value::as_array).is_some_and(|all| all.iter().any(|item| value_matches(one, Some(item))))
        }
        Some(MatchPattern::DoubleMatch(_)) | None => false,
    }
}
