//! RequestAuthentication as Envoy's jwt_authn filter: a JWT must be valid if present.

use std::collections::BTreeMap;

use api::envoy::config::core::v3::{DataSource, data_source};
use api::envoy::config::route::v3::RouteMatch;
use api::envoy::config::route::v3::route_match::PathSpecifier;
use api::envoy::extensions::filters::http::jwt_authn::v3::jwt_provider::{JwksSourceSpecifier, NormalizePayload};
use api::envoy::extensions::filters::http::jwt_authn::v3::jwt_requirement::RequiresType;
use api::envoy::extensions::filters::http::jwt_authn::v3::requirement_rule::RequirementType;
use api::envoy::extensions::filters::http::jwt_authn::v3::{
    JwtAuthentication, JwtClaimToHeader, JwtHeader, JwtProvider, JwtRequirement, JwtRequirementAndList,
    JwtRequirementOrList, RequirementRule,
};
use api::istio::security::v1beta1::JwtRule;
use model::fetch_requests::KeySource;
use model::hashed::Hashed;
use model::jwks;
use model::names::Str;
use scope::View;

pub const FILTER: &str = "envoy.filters.http.jwt_authn";
const PAYLOAD: &str = "payload";

/// JWKS of an issuer without known keys: no JWT can be valid. Envoy rejects an empty key set, so it has one key: the
/// number 2, which is not a point on the curve Ed25519. It has no private key, and no signature verifies against it.
const NO_KEYS: &str =
    r#"{"keys":[{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","x":"AgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}]}"#;

/// JWT rules of all policies of one workload, sorted by issuer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestAuthentication {
    pub rules: Vec<KeyedRule>,
    /// Routes match claims, so the route is selected again after the JWT is read.
    pub clear_route_cache: bool,
}

/// A rule and its JWKS.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyedRule {
    pub rule: Hashed<JwtRule>,
    pub keys: Str,
}

/// The JWT rules of this client; `None` without any.
pub fn request_authentication(view: &View, clear_route_cache: bool) -> Option<RequestAuthentication> {
    let policies = view.attached(&view.policy.request_authentications);
    let mut rules: Vec<&JwtRule> = policies.iter().flat_map(|p| p.spec.jwt_rules.iter()).collect();
    rules.sort_by(|a, b| a.issuer.cmp(&b.issuer));
    if rules.is_empty() {
        return None;
    }
    let keyed = |rule: &JwtRule| KeyedRule { rule: Hashed::from_message(rule.clone()), keys: keys(view, rule) };
    Some(RequestAuthentication { rules: rules.into_iter().map(keyed).collect(), clear_route_cache })
}

/// The JWKS of a rule, inline or fetched. Without a JWKS that Envoy can use, JWTs of the issuer are rejected.
fn keys(view: &View, rule: &JwtRule) -> Str {
    let found = match rule.jwks.as_str() {
        "" => KeySource::of(rule).and_then(|source| view.keys.get(&source).cloned()),
        own => Some(own.into()),
    };
    found.filter(|keys| jwks::check(keys).is_ok()).unwrap_or_else(|| NO_KEYS.into())
}

/// The filter's config.
pub fn render(plan: &RequestAuthentication) -> JwtAuthentication {
    let named = |i: usize| format!("origins-{i}");
    let providers: BTreeMap<String, JwtProvider> =
        plan.rules.iter().enumerate().map(|(i, rule)| (named(i), provider(rule, plan.clear_route_cache))).collect();
    let names: Vec<String> = (0..plan.rules.len()).map(named).collect();
    let rule = RequirementRule {
        r#match: Some(RouteMatch {
            path_specifier: Some(PathSpecifier::Prefix("/".to_owned())),
            ..RouteMatch::default()
        }),
        requirement_type: Some(RequirementType::Requires(requirement(&names))),
    };
    JwtAuthentication { providers, rules: vec![rule], bypass_cors_preflight: true, ..JwtAuthentication::default() }
}

fn provider(keyed: &KeyedRule, clear_route_cache: bool) -> JwtProvider {
    let rule = &keyed.rule;
    let keys = DataSource {
        specifier: Some(data_source::Specifier::InlineString(keyed.keys.to_string())),
        ..DataSource::default()
    };
    let header = |h: &api::istio::security::v1beta1::JwtHeader| JwtHeader {
        name: h.name.clone(),
        value_prefix: h.prefix.clone(),
    };
    let claim = |c: &api::istio::security::v1beta1::ClaimToHeader| JwtClaimToHeader {
        header_name: c.header.clone(),
        claim_name: c.claim.clone(),
        ..JwtClaimToHeader::default()
    };
    JwtProvider {
        issuer: rule.issuer.clone(),
        audiences: rule.audiences.clone(),
        forward: rule.forward_original_token,
        forward_payload_header: rule.output_payload_to_header.clone(),
        payload_in_metadata: PAYLOAD.to_owned(),
        normalize_payload_in_metadata: Some(NormalizePayload { space_delimited_claims: spaced_claims(rule) }),
        clear_route_cache,
        claim_to_headers: rule.output_claim_to_headers.iter().map(claim).collect(),
        from_headers: rule.from_headers.iter().map(header).collect(),
        from_params: rule.from_params.clone(),
        from_cookies: rule.from_cookies.clone(),
        jwks_source_specifier: Some(JwksSourceSpecifier::LocalJwks(keys)),
        ..JwtProvider::default()
    }
}

/// Claims with space-delimited lists: the rule's, `permission` and `scope`.
fn spaced_claims(rule: &JwtRule) -> Vec<String> {
    let mut claims: Vec<String> = rule.space_delimited_claims.clone();
    claims.extend(["permission".to_owned(), "scope".to_owned()]);
    claims.sort();
    claims.dedup();
    claims
}

/// One issuer: a valid JWT or none. Several issuers: a valid JWT of any, or no invalid JWT. The first alternative is
/// for issuers with the same JWT location, where a JWT is always invalid for one of them.
fn requirement(names: &[String]) -> JwtRequirement {
    let of = |name: &String| required(RequiresType::ProviderName(name.clone()));
    let or_missing = |name: &String| any_of(vec![of(name), required(RequiresType::AllowMissing(()))]);
    if let [only] = names {
        return or_missing(only);
    }
    let none_bad = JwtRequirementAndList { requirements: names.iter().map(or_missing).collect() };
    let each = names.iter().map(of);
    any_of(each.chain([required(RequiresType::RequiresAll(none_bad))]).collect())
}

fn any_of(requirements: Vec<JwtRequirement>) -> JwtRequirement {
    required(RequiresType::RequiresAny(JwtRequirementOrList { requirements }))
}

fn required(kind: RequiresType) -> JwtRequirement {
    JwtRequirement { requires_type: Some(kind) }
}
