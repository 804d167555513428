//! AuthorizationPolicies of one workload, by action. `rbac` renders RBAC filters, `ext_authz` external authorization.

mod attribute;
mod ext_authz;
mod matchers;
mod rbac;
mod trust;

use std::collections::BTreeMap;

use api::istio::security::v1beta1::authorization_policy::{Action, ActionDetail};
use api::istio::security::v1beta1::{AuthorizationPolicy, Rule as PolicyRule};
use model::config::Config;
use model::names::{Namespace, Str};
use model::proxy::ProxyKind;
use scope::View;

use attribute::Attribute;
pub use ext_authz::ExtAuthzProvider;
pub use rbac::{http_filter, network_filter};

const DRY_RUN: &str = "istio.io/dry-run";
/// Annotation of policies that do not apply to gateways.
const SIDECARS_ONLY: &str = "internal.istio.io/sidecars-only";
const CUSTOM_PREFIX: &str = "istio-ext-authz";
const HTTP_RBAC: &str = "envoy.filters.http.rbac";
const NETWORK_RBAC: &str = "envoy.filters.network.rbac";

/// All authorization policies of one workload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Authorization {
    /// CUSTOM rules, by provider name.
    pub custom: Vec<CustomRules>,
    pub audit: Option<RuleSet>,
    pub deny: Option<RuleSet>,
    pub allow: Option<RuleSet>,
}

/// Rules by their name in metrics and logs.
pub type NamedRules = BTreeMap<Str, AuthorizationRule>;

/// One authorization filter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AuthorizationFilter {
    Enforce(PolicyAction, RuleSet),
    /// RBAC that marks requests for an ext_authz provider.
    Mark(CustomRules),
    /// ext_authz for marked requests.
    Ask(CustomRules, ExtAuthzProvider),
    /// RBAC that denies the requests because the provider is unusable.
    Refuse(CustomRules),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyAction {
    Audit,
    Deny,
    Allow,
}

/// Whether a filter is an HTTP or a network filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterLayer {
    Http,
    Tcp,
}

impl Authorization {
    /// Filters of CUSTOM policies; they run before JWTs are read.
    pub fn custom_checks(&self, layer: FilterLayer) -> Vec<AuthorizationFilter> {
        let of = |custom: &CustomRules| match &custom.provider {
            None => vec![AuthorizationFilter::Refuse(custom.clone())],
            Some(provider) if layer == FilterLayer::Tcp && !provider.speaks_grpc() => Vec::new(),
            Some(provider) => vec![
                AuthorizationFilter::Mark(custom.clone()),
                AuthorizationFilter::Ask(custom.clone(), provider.clone()),
            ],
        };
        self.custom.iter().flat_map(of).collect()
    }

    /// Filters of AUDIT, DENY and ALLOW policies, in evaluation order.
    pub fn checks(&self) -> Vec<AuthorizationFilter> {
        let all =
            [(PolicyAction::Audit, &self.audit), (PolicyAction::Deny, &self.deny), (PolicyAction::Allow, &self.allow)];
        all.into_iter()
            .filter_map(|(policy_action, set)| Some(AuthorizationFilter::Enforce(policy_action, set.clone()?)))
            .collect()
    }
}

/// CUSTOM rules of one provider.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CustomRules {
    pub name: Str,
    /// `None` if mesh config has no usable provider of that name: then matching requests are denied.
    pub provider: Option<ExtAuthzProvider>,
    pub enforced: NamedRules,
    pub dry_run: NamedRules,
}

/// Rules of one action. Dry-run rules are only recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RuleSet {
    pub enforced: Option<NamedRules>,
    pub dry_run: Option<NamedRules>,
}

/// One rule: any of the operations by any of the sources.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AuthorizationRule {
    /// A policy without rules matches nothing.
    Never,
    Matching {
        /// Any list must match; all conditions of a list must hold.
        operations: Vec<Vec<AttributeMatch>>,
        sources: Vec<Vec<AttributeMatch>>,
    },
}

/// Accepted and excluded values of one attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttributeMatch {
    pub attribute: Attribute,
    pub values: Vec<Str>,
    pub not_values: Vec<Str>,
    /// Where it denies requests, also match other spellings of the same host or path.
    pub any_spelling: bool,
}

/// The policies of this client; `None` without any.
pub fn authorization(view: &View) -> Option<Authorization> {
    let mut policies = view.attached(&view.policy.authorization_policies);
    if view.proxy.kind == ProxyKind::Router {
        policies.retain(|policy| !policy.meta.annotations.contains_key(SIDECARS_ONLY));
    }
    if policies.is_empty() {
        return None;
    }
    let options = RuleOptions {
        trust_domains: &trust::domains(&view.settings.mesh),
        strict: view.settings.knobs.strict_authorization,
    };
    let of = |action: Action| -> Vec<&Config<AuthorizationPolicy>> {
        policies.iter().copied().filter(|p| p.spec.action() == action).collect()
    };
    Some(Authorization {
        custom: custom(view, &of(Action::Custom), options),
        audit: rule_set(&of(Action::Audit), options),
        deny: rule_set(&of(Action::Deny), options),
        allow: rule_set(&of(Action::Allow), options),
    })
}

/// Mesh-wide settings that affect rules.
#[derive(Clone, Copy)]
struct RuleOptions<'a> {
    trust_domains: &'a [String],
    /// Also deny other spellings of hosts and paths.
    strict: bool,
}

fn rule_set(policies: &[&Config<AuthorizationPolicy>], options: RuleOptions<'_>) -> Option<RuleSet> {
    if policies.is_empty() {
        return None;
    }
    let mut set = RuleSet::default();
    for policy in policies {
        let slot = if is_dry_run(policy) { &mut set.dry_run } else { &mut set.enforced };
        slot.get_or_insert_default().extend(rules(policy, "", options));
    }
    Some(set)
}

fn custom(view: &View, policies: &[&Config<AuthorizationPolicy>], options: RuleOptions<'_>) -> Vec<CustomRules> {
    let mut by_name: BTreeMap<&str, CustomRules> = BTreeMap::new();
    for policy in policies {
        let name = match &policy.spec.action_detail {
            Some(ActionDetail::Provider(provider)) => provider.name.as_str(),
            None => "",
        };
        let entry = by_name.entry(name).or_insert_with(|| CustomRules {
            name: name.into(),
            provider: ext_authz::provider(view, name),
            enforced: BTreeMap::new(),
            dry_run: BTreeMap::new(),
        });
        let prefix = if name.is_empty() { format!("{CUSTOM_PREFIX}-") } else { format!("{CUSTOM_PREFIX}-{name}-") };
        let slot = if is_dry_run(policy) { &mut entry.dry_run } else { &mut entry.enforced };
        slot.extend(rules(policy, &prefix, options));
    }
    let several = by_name.len() > 1 && !view.settings.knobs.several_custom_providers;
    let mut found: Vec<CustomRules> = by_name.into_values().collect();
    if several {
        // One request cannot be sent to several providers, so none is used.
        found.iter_mut().for_each(|custom| custom.provider = None);
    }
    found
}

fn is_dry_run(policy: &Config<AuthorizationPolicy>) -> bool {
    let value = policy.meta.annotations.get(DRY_RUN).map(|v| &**v);
    matches!(value, Some("true" | "1" | "t" | "T" | "TRUE" | "True"))
}

/// A policy's rules with their names.
fn rules(
    policy: &Config<AuthorizationPolicy>,
    prefix: &str,
    options: RuleOptions<'_>,
) -> Vec<(Str, AuthorizationRule)> {
    let meta = &policy.meta;
    let named = |index: usize| Str::from(format!("{prefix}ns[{}]-policy[{}]-rule[{index}]", meta.namespace, meta.name));
    if policy.spec.rules.is_empty() {
        return vec![(named(0), AuthorizationRule::Never)];
    }
    let numbered = policy.spec.rules.iter().enumerate();
    // A rule with an unknown attribute is omitted; validation reports it.
    numbered.filter_map(|(i, rule)| Some((named(i), matching(rule, &meta.namespace, options)?))).collect()
}

fn matching(rule: &PolicyRule, namespace: &Namespace, options: RuleOptions<'_>) -> Option<AuthorizationRule> {
    let mut on_operation = Vec::new();
    let mut on_source = Vec::new();
    for when in &rule.when {
        let attribute = Attribute::parse(&when.key, namespace)?;
        let side = if attribute.is_of_operation() { &mut on_operation } else { &mut on_source };
        push(side, attribute, &when.values, &when.not_values);
    }
    let mut sources: Vec<Vec<AttributeMatch>> = rule
        .from
        .iter()
        .map(|from| {
            let mut all = from.source.as_ref().map(|s| of_source(s, namespace)).unwrap_or_default();
            all.extend(on_source.iter().cloned());
            all
        })
        .collect();
    let mut operations: Vec<Vec<AttributeMatch>> = rule
        .to
        .iter()
        .map(|to| {
            let mut all = to.operation.as_ref().map(of_operation).unwrap_or_default();
            all.extend(on_operation.iter().cloned());
            all
        })
        .collect();
    if sources.is_empty() {
        sources.push(on_source);
    }
    if operations.is_empty() {
        operations.push(on_operation);
    }
    sources.iter_mut().flatten().for_each(|condition| trust::widen(condition, options.trust_domains));
    for condition in sources.iter_mut().chain(&mut operations).flatten() {
        condition.any_spelling = options.strict && condition.attribute.has_spellings();
    }
    Some(AuthorizationRule::Matching { operations, sources })
}

fn of_source(source: &api::istio::security::v1beta1::Source, namespace: &Namespace) -> Vec<AttributeMatch> {
    let mut all = Vec::new();
    push(&mut all, Attribute::Principal, &source.principals, &source.not_principals);
    push(&mut all, Attribute::RequestPrincipal, &source.request_principals, &source.not_request_principals);
    let account = Attribute::ServiceAccount(namespace.clone());
    push(&mut all, account, &source.service_accounts, &source.not_service_accounts);
    push(&mut all, Attribute::TrustDomain, &source.trust_domains, &source.not_trust_domains);
    push(&mut all, Attribute::Namespace, &source.namespaces, &source.not_namespaces);
    push(&mut all, Attribute::RemoteIp, &source.remote_ip_blocks, &source.not_remote_ip_blocks);
    push(&mut all, Attribute::SourceIp, &source.ip_blocks, &source.not_ip_blocks);
    all
}

fn of_operation(operation: &api::istio::security::v1beta1::Operation) -> Vec<AttributeMatch> {
    let mut all = Vec::new();
    push(&mut all, Attribute::Host, &operation.hosts, &operation.not_hosts);
    push(&mut all, Attribute::Method, &operation.methods, &operation.not_methods);
    push(&mut all, Attribute::Path, &operation.paths, &operation.not_paths);
    push(&mut all, Attribute::DestinationPort, &operation.ports, &operation.not_ports);
    all
}

fn push(conditions: &mut Vec<AttributeMatch>, attribute: Attribute, values: &[String], not_values: &[String]) {
    if values.is_empty() && not_values.is_empty() {
        return;
    }
    let texts = |list: &[String]| list.iter().map(|v| Str::from(v.as_str())).collect();
    conditions.push(AttributeMatch {
        attribute,
        values: texts(values),
        not_values: texts(not_values),
        any_spelling: false,
    });
}
