//! Renders authorization rules as RBAC filters. TCP connections have no HTTP attributes: an ALLOW rule with one is
//! omitted; in other rules the condition is omitted.

use api::Any;
use api::envoy::config::core::v3::{CidrRange, TypedExtensionConfig};
use api::envoy::config::rbac::v3::rbac::Action;
use api::envoy::config::rbac::v3::{Permission, Policy, Principal, Rbac, permission, principal};
use api::envoy::extensions::filters::http::rbac::v3::Rbac as HttpRbac;
use api::envoy::extensions::filters::network::rbac::v3::Rbac as NetworkRbac;
use api::envoy::extensions::path::r#match::uri_template::v3::UriTemplateMatchConfig;
use api::envoy::r#type::matcher::v3::{MetadataMatcher, PathMatcher, StringMatcher, path_matcher};
use ipnet::IpNet;
use model::names::Str;

use super::attribute::Attribute;
use super::matchers::{self, CaseMatch, ValueSpelling};
use super::{
    AttributeMatch, AuthorizationFilter, AuthorizationRule, FilterLayer, HTTP_RBAC, NETWORK_RBAC, NamedRules,
    PolicyAction, ext_authz,
};
use crate::regex_escape::escaped;

const JWT_FILTER: &str = "envoy.filters.http.jwt_authn";
const JWT_PAYLOAD: &str = "payload";
const TCP_STATS: &str = "tcp.";
const CUSTOM_STATS: &str = "istio_ext_authz_";
const BAD_CUSTOM: &str = "-deny-due-to-bad-CUSTOM-action";

/// A condition on an attribute that is not available.
struct HttpOnlyAttribute;

/// Name and config of the HTTP filter.
pub fn http_filter(check: &AuthorizationFilter) -> (&'static str, Any) {
    if let AuthorizationFilter::Ask(custom, provider) = check {
        return (ext_authz::HTTP, ext_authz::http(provider, &custom.name));
    }
    let (rules, shadow_rules, prefix) = written(check, FilterLayer::Http);
    let shadow_rules_stat_prefix = prefix.to_owned();
    (HTTP_RBAC, api::any(&HttpRbac { rules, shadow_rules, shadow_rules_stat_prefix, ..HttpRbac::default() }))
}

/// Name and config of the network filter.
pub fn network_filter(check: &AuthorizationFilter) -> (&'static str, Any) {
    if let AuthorizationFilter::Ask(custom, provider) = check {
        return (ext_authz::NETWORK, ext_authz::network(provider, &custom.name));
    }
    let (rules, shadow_rules, prefix) = written(check, FilterLayer::Tcp);
    let rbac = NetworkRbac {
        rules,
        shadow_rules,
        shadow_rules_stat_prefix: prefix.to_owned(),
        stat_prefix: TCP_STATS.to_owned(),
        ..NetworkRbac::default()
    };
    (NETWORK_RBAC, api::any(&rbac))
}

/// Enforced rules, shadow rules, and the stat prefix of the shadow rules.
fn written(check: &AuthorizationFilter, layer: FilterLayer) -> (Option<Rbac>, Option<Rbac>, &'static str) {
    match check {
        AuthorizationFilter::Enforce(policy_action, set) => {
            let action = match policy_action {
                PolicyAction::Audit => Action::Log,
                PolicyAction::Deny => Action::Deny,
                PolicyAction::Allow => Action::Allow,
            };
            let of = |rules: &Option<NamedRules>| rules.as_ref().map(|rules| rbac(rules, action, layer, ""));
            // As upstream: ALLOW's prefix if there are no dry-run rules.
            let prefix = match policy_action {
                _ if set.dry_run.is_none() => "istio_dry_run_allow_",
                PolicyAction::Allow => "istio_dry_run_allow_",
                PolicyAction::Deny => "istio_dry_run_deny_",
                PolicyAction::Audit => "",
            };
            (of(&set.enforced), of(&set.dry_run), prefix)
        }
        // Shadow rules only mark requests; the ext_authz filter then checks marked ones.
        AuthorizationFilter::Mark(custom) | AuthorizationFilter::Ask(custom, _) => {
            let dry_run = Some(rbac(&custom.dry_run, Action::Deny, layer, "")).filter(|r| !r.policies.is_empty());
            (dry_run, Some(rbac(&custom.enforced, Action::Deny, layer, "")), CUSTOM_STATS)
        }
        AuthorizationFilter::Refuse(custom) => {
            (Some(rbac(&custom.enforced, Action::Deny, layer, BAD_CUSTOM)), None, "")
        }
    }
}

fn rbac(rules: &NamedRules, action: Action, layer: FilterLayer, suffix: &str) -> Rbac {
    let policies =
        rules.iter().filter_map(|(name, rule)| Some((format!("{name}{suffix}"), policy(rule, action, layer)?)));
    Rbac { action: action as i32, policies: policies.collect(), ..Rbac::default() }
}

fn policy(rule: &AuthorizationRule, action: Action, layer: FilterLayer) -> Option<Policy> {
    let AuthorizationRule::Matching { operations, sources } = rule else { return Some(never()) };
    let permissions: Result<Vec<Permission>, HttpOnlyAttribute> = operations
        .iter()
        .map(|conditions| all_of(conditions, action, layer, operation, not_permission, or_permissions))
        .map(|all| all.map(and_permissions))
        .collect();
    let principals: Result<Vec<Principal>, HttpOnlyAttribute> = sources
        .iter()
        .map(|conditions| all_of(conditions, action, layer, source, not_principal, or_principals))
        .map(|all| all.map(and_principals))
        .collect();
    Some(Policy { permissions: permissions.ok()?, principals: principals.ok()?, ..Policy::default() })
}

/// Matchers for all conditions of a list.
fn all_of<M>(
    conditions: &[AttributeMatch],
    action: Action,
    layer: FilterLayer,
    written: impl Fn(&Attribute, &[Str], ValueSpelling) -> (Vec<M>, bool),
    not: impl Fn(M) -> M,
    or: impl Fn(Vec<M>) -> M,
) -> Result<Vec<M>, HttpOnlyAttribute> {
    let mut all = Vec::new();
    for condition in conditions {
        let http_only = layer == FilterLayer::Tcp && condition.attribute.is_http_only();
        if http_only && action == Action::Allow {
            return Err(HttpOnlyAttribute);
        }
        if http_only {
            continue;
        }
        for (values, negated) in [(&condition.values, false), (&condition.not_values, true)] {
            if values.is_empty() {
                continue;
            }
            // Only where it denies more requests: excluded values of ALLOW rules, accepted values of others.
            let denies = (action == Action::Allow) == negated;
            let spelling = if condition.any_spelling && denies { ValueSpelling::Any } else { ValueSpelling::Written };
            let (mut found, complete) = written(&condition.attribute, values, spelling);
            if !complete && action == Action::Allow {
                return Err(HttpOnlyAttribute);
            }
            let one = match (found.len(), condition.attribute.is_one_matcher()) {
                (0, _) => continue,
                (1, true) => found.remove(0),
                _ => or(found),
            };
            all.push(if negated { not(one) } else { one });
        }
    }
    Ok(all)
}

impl Attribute {
    /// Attributes whose values are combined in one matcher.
    fn is_one_matcher(&self) -> bool {
        matches!(
            self,
            Attribute::FilterMetadata(..)
                | Attribute::RequestPrincipal
                | Attribute::Audience
                | Attribute::Presenter
                | Attribute::Claim(_)
        )
    }
}

/// One matcher per valid value, and whether all values are valid.
fn operation(attribute: &Attribute, values: &[Str], spelling: ValueSpelling) -> (Vec<Permission>, bool) {
    use permission::Rule as Is;
    let one = |value: &Str| -> Option<Is> {
        Some(match attribute {
            Attribute::Host if spelling == ValueSpelling::Any => Is::Header(matchers::host(":authority", value)),
            Attribute::Host => Is::Header(matchers::header(":authority", value, CaseMatch::Ignored)),
            Attribute::Method => Is::Header(matchers::header(":method", value, CaseMatch::Exact)),
            Attribute::Path => path(value, spelling),
            Attribute::DestinationIp => Is::DestinationIp(cidr(value)?),
            Attribute::DestinationPort => Is::DestinationPort(value.parse::<u16>().ok()?.into()),
            Attribute::ServerName => Is::RequestedServerName(matchers::text(value, "")),
            _ => return None,
        })
    };
    if let Attribute::FilterMetadata(filter, key) = attribute {
        let found = matchers::any_of(values.iter().map(|v| list_or_text(v)).collect());
        return (vec![permission(Is::Metadata(matchers::metadata(filter, &[key], found)))], true);
    }
    let found: Vec<Permission> = values.iter().filter_map(one).map(permission).collect();
    let complete = found.len() == values.len();
    (found, complete)
}

/// `[v]` matches a list that contains v.
fn list_or_text(value: &str) -> api::envoy::r#type::matcher::v3::ValueMatcher {
    match value.strip_prefix('[').and_then(|v| v.strip_suffix(']')) {
        Some(inner) => matchers::list_of(matchers::value(matchers::text(inner.trim_matches(['[', ']']), ""))),
        None => matchers::value(matchers::text(value, "")),
    }
}

fn path(value: &str, spelling: ValueSpelling) -> permission::Rule {
    if value.contains("{*}") || value.contains("{**}") {
        let path_template = value.replace("{**}", "**").replace("{*}", "*");
        let config = TypedExtensionConfig {
            name: "uri-template".to_owned(),
            typed_config: Some(api::any(&UriTemplateMatchConfig { path_template })),
        };
        return permission::Rule::UriTemplate(config);
    }
    let text = match spelling {
        ValueSpelling::Written => matchers::text(value, ""),
        ValueSpelling::Any => matchers::path(value),
    };
    permission::Rule::UrlPath(PathMatcher { rule: Some(path_matcher::Rule::Path(text)) })
}

fn source(attribute: &Attribute, values: &[Str], spelling: ValueSpelling) -> (Vec<Principal>, bool) {
    use principal::Identifier as Is;
    let one = |value: &Str| -> Option<Is> {
        Some(match attribute {
            Attribute::SourceIp => Is::DirectRemoteIp(cidr(value)?),
            Attribute::RemoteIp => Is::RemoteIp(cidr(value)?),
            Attribute::Namespace => authenticated(matchers::regex(namespace_regex(value))),
            Attribute::TrustDomain => authenticated(trust_domain(value)),
            Attribute::ServiceAccount(namespace) => authenticated(matchers::regex(account_regex(namespace, value))),
            Attribute::Principal => authenticated(matchers::text(value, "spiffe://")),
            Attribute::Header(name) if spelling == ValueSpelling::Any => Is::Header(matchers::host(name, value)),
            Attribute::Header(name) => Is::Header(matchers::header(name, value, CaseMatch::Exact)),
            _ => return None,
        })
    };
    let claimed = |path: &[&str]| {
        let value = matchers::any_of(values.iter().map(|v| matchers::value(matchers::text(v, ""))).collect());
        (vec![principal(Is::Metadata(claim_or_list(path, value)))], true)
    };
    match attribute {
        Attribute::RequestPrincipal => {
            let each: Vec<Principal> = values.iter().map(|v| request_principal(v)).collect();
            let one = if each.len() == 1 { each } else { vec![or_principals(each)] };
            (one, true)
        }
        Attribute::Audience => claimed(&["aud"]),
        Attribute::Presenter => claimed(&["azp"]),
        Attribute::Claim(path) => claimed(&path.iter().map(|p| &**p).collect::<Vec<_>>()),
        _ => {
            let found: Vec<Principal> = values.iter().filter_map(one).map(principal).collect();
            let complete = found.len() == values.len();
            (found, complete)
        }
    }
}

/// `issuer/subject`; the issuer may be a URL, so the last slash separates them.
fn request_principal(value: &str) -> Principal {
    let (issuer, subject, parted) = match value.rsplit_once('/') {
        Some((issuer, subject)) => (issuer, subject, true),
        None => (value, "", false),
    };
    let (issuer, subject) = if value == "*" {
        (matchers::present(), matchers::present())
    } else if let Some(end) = value.strip_prefix('*') {
        if parted {
            let of_issuer = issuer.strip_prefix('*').unwrap_or(issuer);
            let issuer = if issuer == "*" { matchers::present() } else { matchers::suffix(of_issuer) };
            (issuer, matchers::exact(subject))
        } else {
            (matchers::present(), matchers::suffix(end))
        }
    } else if let Some(start) = value.strip_suffix('*') {
        if parted {
            let of_subject = subject.strip_suffix('*').unwrap_or(subject);
            let subject = if subject == "*" { matchers::present() } else { matchers::prefix(of_subject) };
            (matchers::exact(issuer), subject)
        } else {
            (matchers::prefix(start), matchers::present())
        }
    } else {
        (matchers::exact(issuer), matchers::exact(subject))
    };
    let claim = |name: &str, matcher: StringMatcher| {
        principal(principal::Identifier::Metadata(matchers::metadata(
            JWT_FILTER,
            &[JWT_PAYLOAD, name],
            matchers::value(matcher),
        )))
    };
    and_principals(vec![claim("iss", issuer), claim("sub", subject)])
}

/// Matches a claim that is a value or a list of values.
fn claim_or_list(path: &[&str], value: api::envoy::r#type::matcher::v3::ValueMatcher) -> MetadataMatcher {
    let path: Vec<&str> = std::iter::once(JWT_PAYLOAD).chain(path.iter().copied()).collect();
    matchers::metadata(JWT_FILTER, &path, matchers::any_of(vec![matchers::list_of(value.clone()), value]))
}

fn namespace_regex(value: &str) -> String {
    let literal: Vec<String> = value.split('*').map(escaped).collect();
    format!(".*/ns/{}/.*", literal.join(".*"))
}

/// Matches the SPIFFE ID of a service account; it may have further path segments before `sa` and after the name.
fn account_regex(own: &str, value: &str) -> String {
    let (namespace, account) = value.split_once('/').unwrap_or((own, value));
    format!("spiffe://.+/ns/{}/(.+/|)sa/{}(/.+)?", escaped(namespace), escaped(account))
}

fn trust_domain(value: &str) -> StringMatcher {
    match value.split_once('*') {
        Some(("", "")) => matchers::prefix("spiffe://"),
        None => matchers::prefix(&format!("spiffe://{value}/")),
        Some((start, end)) => matchers::regex(format!("spiffe://{}[^/]*{}/.*", escaped(start), escaped(end))),
    }
}

fn authenticated(name: StringMatcher) -> principal::Identifier {
    principal::Identifier::Authenticated(principal::Authenticated { principal_name: Some(name) })
}

fn cidr(value: &str) -> Option<CidrRange> {
    let block: IpNet = value.parse().or_else(|_| value.parse::<std::net::IpAddr>().map(IpNet::from)).ok()?;
    Some(CidrRange { address_prefix: block.addr().to_string(), prefix_len: Some(block.prefix_len().into()) })
}

fn never() -> Policy {
    let any = permission(permission::Rule::Any(true));
    let anybody = principal(principal::Identifier::Any(true));
    Policy { permissions: vec![not_permission(any)], principals: vec![not_principal(anybody)], ..Policy::default() }
}

fn permission(rule: permission::Rule) -> Permission {
    Permission { rule: Some(rule) }
}

fn and_permissions(mut rules: Vec<Permission>) -> Permission {
    if rules.is_empty() {
        rules.push(permission(permission::Rule::Any(true)));
    }
    permission(permission::Rule::AndRules(permission::Set { rules }))
}

fn or_permissions(rules: Vec<Permission>) -> Permission {
    permission(permission::Rule::OrRules(permission::Set { rules }))
}

fn not_permission(rule: Permission) -> Permission {
    permission(permission::Rule::NotRule(Box::new(rule)))
}

fn principal(identifier: principal::Identifier) -> Principal {
    Principal { identifier: Some(identifier) }
}

fn and_principals(mut ids: Vec<Principal>) -> Principal {
    if ids.is_empty() {
        ids.push(principal(principal::Identifier::Any(true)));
    }
    principal(principal::Identifier::AndIds(principal::Set { ids }))
}

fn or_principals(ids: Vec<Principal>) -> Principal {
    principal(principal::Identifier::OrIds(principal::Set { ids }))
}

fn not_principal(id: Principal) -> Principal {
    principal(principal::Identifier::NotId(Box::new(id)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::{account_regex, namespace_regex};

    /// Envoy matches the whole text.
    fn matches(expression: &str, text: &str) -> bool {
        regex::Regex::new(&format!("^(?:{expression})$")).expect("a regex of ours").is_match(text)
    }

    proptest! {
        #[test]
        fn account_matches_itself_only(a in "[a-z.+-]{1,6}", b in "[a-z.+-]{1,6}") {
            let identity = format!("spiffe://td/ns/shop/sa/{b}");
            prop_assert_eq!(matches(&account_regex("shop", &a), &identity), a == b);
        }

        #[test]
        fn namespace_matches_itself_only(a in "[a-z.+-]{1,6}", b in "[a-z.+-]{1,6}") {
            let identity = format!("spiffe://td/ns/{b}/sa/x");
            prop_assert_eq!(matches(&namespace_regex(&a), &identity), a == b);
        }
    }
}
